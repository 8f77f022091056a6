"""Every message that leaves a process, as frozen typed structs; MessagePack on the wire. Pure.

`control` travels over NATS, `data` over the links between engines, `store` over those between a
node and a storage shard. Arrays of keys and token ids are packed bytes (`dualpath.blocks.keys`).
"""
