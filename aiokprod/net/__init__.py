"""Connections to brokers: knows nodes, requests and bytes, nothing of topics or batches.

client.NetworkClient        many nodes: dialling, backoff, throttling, least loaded node
connection.Connection       one transport: asyncio callbacks, flow control, one timer
channel.KafkaChannel        one connection's life as a state machine, without I/O or clock
connection_states           what outlives a connection: backoff, setup timeout, addresses
dialer.TcpDialer            names to sockets
security                    the seam for SASL
"""
