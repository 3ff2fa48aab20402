"""Connections to brokers: nodes, requests and bytes; does not depend on topics or batches.

client.NetworkClient        many nodes: backoff, throttling, orderly closing
least_loaded                the node for a request to which any node can respond
dial_tasks, dialer          tasks that connect; names and addresses to sockets
connection.Connection       one transport: asyncio callbacks, flow control, one timer
channel.KafkaChannel        one connection as a state machine, without I/O or clock
channel_states              its states and events
node_api_versions           API versions of each node, from ApiVersions responses
in_flight, throttle         open requests; which requests a throttled client holds back
connection_states           state that outlives connections: backoff, setup timeout, addresses
connection_factory          creates connections from the configuration
tls, tls_transport          TLS contexts from the configuration; TLS over memory BIOs
authentication, sasl        the interface of the channel to SASL; SASL and its mechanisms
"""
