"""Connections to brokers: nodes, requests and bytes. Does not depend on topics or batches.

client.NetworkClient        many nodes: backoff, throttling, graceful closing
least_loaded                chooses the node for a request to which any node can respond
dial_tasks, dialer          tasks that connect; name resolution and sockets
connection.Connection       one transport: asyncio callbacks, flow control, one timer
channel.KafkaChannel        one connection as a state machine, without I/O or clock
channel_states              states and events of a channel
node_api_versions           API versions of each node, from ApiVersions responses
in_flight, throttle         requests in flight; responses after which the client must wait
connection_states           state that outlives connections: backoff, setup timeout, addresses
connection_factory          creates connections from the configuration
tls, tls_transport          TLS contexts from the configuration; TLS over memory BIOs
authentication, sasl        the interface between the channel and SASL; SASL mechanisms
"""
