// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/bpf/datapath/packettest"
)

const (
	nfDrop, nfAccept = 0, 1

	hookLocalIn = 1
	hookForward = 2
	protoIPv4   = 2
	protoIPv6   = 10
)

// backstop runs the backstop on a packet that the host forwards, without a mark:
// there is no way to give it one in a test run.
func (f *fixture) backstop(from, to netip.Addr) (verdict uint32, events []bpf.Event) {
	f.Helper()
	return f.backstopAt(hookForward, tcp(from, to, podPort, serverPort, packettest.SYN)...)
}

// TestBackstop: what from_pod has not seen is dropped where some policy covers the
// destination, and passes elsewhere.
func TestBackstop(t *testing.T) {
	eachFamily(t, func(f *fixture) {
		accept := func(from, to netip.Addr, why string) {
			t.Helper()
			verdict, events := f.backstop(from, to)
			require.EqualValues(f, nfAccept, verdict, why)
			require.Empty(f, events, why)
		}
		drop := func(from, to netip.Addr) {
			t.Helper()
			verdict, events := f.backstop(from, to)
			require.EqualValues(f, nfDrop, verdict)
			require.Len(f, events, 1)
			require.Equal(f, bpf.ReasonNotChecked, events[0].Reason)
			require.Equal(f, bpf.ProgramBackstop, events[0].Program)
			require.Equal(f, from, events[0].Source.Addr())
			require.Equal(f, to, events[0].Destination.Addr())
		}
		accept(f.Pod, f.Server, "no policy")
		require.NoError(f, f.Cover(f.Covered))
		drop(f.Pod, f.Server)
		drop(f.OtherPod, f.Server)
		drop(f.UnassignedPod, f.Server) // a pod that the agent has not heard of yet
		accept(f.Pod, f.Uncovered, "not covered")
		accept(f.Server2, f.Server, "from outside")
		accept(f.NodeIP, f.Server, "of the host")
		accept(f.RemotePod, f.Server, "a pod of another node")
		require.NoError(f, f.Cover(netip.PrefixFrom(f.Pod, 0).Masked()))
		accept(f.Pod, f.RemotePod, "in the cluster")
		accept(f.Pod, f.Service, "a service")
		drop(f.Pod, f.Uncovered)

		config := f.Config
		config.Flags &^= bpf.ConfigBackstop
		require.NoError(f, f.SetConfig(config))
		accept(f.Pod, f.Server, "switched off")
	})
}
