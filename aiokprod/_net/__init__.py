"""Connections to brokers: nodes, requests and bytes. Does not depend on topics or batches.

client.NetworkClient        all nodes: backoff, throttling, graceful closing
least_loaded                the node for a request that any node can answer
dial_tasks, dialer          tasks that connect; name resolution and sockets
connection.Connection       one transport: asyncio callbacks, flow control, one timer
channel.KafkaChannel        state machine of one connection, without I/O or clock
channel_states              states and events of the channel
node_api_versions           handling of ApiVersions responses
in_flight, throttle         requests in flight; which responses throttle the client
connection_states           state per node: backoff, setup timeout, addresses
connection_factory          creates connections from the configuration
authentication, sasl        interface of SASL, and its mechanisms
"""
