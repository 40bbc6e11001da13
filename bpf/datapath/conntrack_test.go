// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"bytes"
	"os"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf/datapath/packettest"
)

// TestWithoutConntrack: where the kernel has no connection tracking, or its module is not
// there yet, the programs are loaded all the same.
func TestWithoutConntrack(t *testing.T) {
	newFixture(t, packettest.World4) // for the privileges
	object, err := os.ReadFile("programs_bpfel.o")
	require.NoError(t, err)
	for _, name := range []string{"bpf_skb_ct_lookup", "bpf_ct_release", "nf_conn", "nf_conntrack_man", "nf_conntrack_tuple", "nf_conntrack_tuple_hash", "nf_conntrack_man_proto", "nf_inet_addr"} {
		missing := append([]byte(name[:len(name)-1]), '_', 0)
		require.True(t, bytes.Contains(object, append([]byte(name), 0)), name)
		object = bytes.ReplaceAll(object, append([]byte(name), 0), missing)
	}
	spec, err := ebpf.LoadCollectionSpecFromReader(bytes.NewReader(object))
	require.NoError(t, err)
	for _, m := range spec.Maps {
		m.Pinning = ebpf.PinNone
	}
	collection, err := ebpf.NewCollection(spec)
	require.NoError(t, err)
	collection.Close()
}
