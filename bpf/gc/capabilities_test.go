// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/bpf/ctmap"
)

// leaveCapabilities takes all others from the test, whose thread ends with it.
func leaveCapabilities(t *testing.T, which ...int) {
	runtime.LockOSThread()
	var data [2]unix.CapUserData
	for _, c := range which {
		data[c/32].Effective |= 1 << (c % 32)
		data[c/32].Permitted |= 1 << (c % 32)
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	require.NoError(t, unix.Capset(&header, &data[0]))
}

// The kernel accepts the programs from an agent with the capabilities of
// deploy/daemonset.yaml, and refuses them without PERFMON.
func TestCapabilities(t *testing.T) {
	requireRoot(t)
	t.Run("of the agent", func(t *testing.T) {
		leaveCapabilities(t, unix.CAP_BPF, unix.CAP_NET_ADMIN, unix.CAP_PERFMON)
		f := newFixture(t, "")
		for name, flow := range connections {
			f.connect(flow, ctmap.Entry{Lifetime: f.now - long})
			f.pair(flow, long)
			counts, err := f.Count()
			require.NoError(t, err)
			require.Equal(t, 1, counts.Entries[ctmap.CTName(flow.Is6(), flow.Protocol)], name)
			require.Equal(t, Pass{Scanned: 1, Expired: 1, Translations: 2}, f.run(Filter{Expired: true, Orphans: true}), name)
			f.requireEmpty()
		}
	})
	t.Run("without PERFMON", func(t *testing.T) {
		leaveCapabilities(t, unix.CAP_BPF, unix.CAP_NET_ADMIN)
		_, err := Open(newMaps(t, testRoom))
		require.ErrorContains(t, err, "load programs")
	})
}
