// SPDX-License-Identifier: Apache-2.0

package bpf

// NodeKey is the key of sluice_nodes: an address of a node of the cluster.
type NodeKey struct{ Addr Address }

func (k NodeKey) String() string { return k.Addr.String() }

// NodeFlags are the flags of a [NodeValue].
type NodeFlags uint32

// NodeAlive says that the node is ready: connections pinned to it stay with it.
const NodeAlive NodeFlags = 1 << 0

var nodeFlagNames = []string{"alive"}

func (f NodeFlags) String() string { return flagsString(uint32(f), nodeFlagNames) }

// MarshalText implements [encoding.TextMarshaler], for dumps.
func (f NodeFlags) MarshalText() ([]byte, error) { return []byte(f.String()), nil }

// UnmarshalText implements [encoding.TextUnmarshaler].
func (f *NodeFlags) UnmarshalText(text []byte) error {
	flags, err := parseFlags(string(text), nodeFlagNames)
	*f = NodeFlags(flags)
	return err
}

// NodeValue is the value of sluice_nodes.
type NodeValue struct{ Flags NodeFlags }

func (v NodeValue) String() string { return v.Flags.String() }
