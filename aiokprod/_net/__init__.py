"""Connections to brokers: knows nodes, requests and bytes, nothing of topics or batches.

client.NetworkClient        many nodes: backoff, throttling, orderly closing
node_choice                 which node to ask what any node can answer
dialing, dialer             tasks that connect; names and addresses to sockets
connection.Connection       one transport: asyncio callbacks, flow control, one timer
channel.KafkaChannel        one connection's life as a state machine, without I/O or clock
channel_states, discovery   its states and events; what to make of ApiVersions answers
in_flight, throttle         open requests; who waits out a throttle
connection_states           what outlives a connection: backoff, setup timeout, addresses
connection_factory          connections as the configuration wants them
security                    the seam for SASL
"""
