// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"net/netip"
	"os"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/bpf/datapath/packettest"
)

// both are the families in which each behavior is tested.
var both = []packettest.Addresses{packettest.World4, packettest.World6}

// sharedNode has the programs loaded once for all tests, as the verifier takes
// its time. The process's end is its end.
var sharedNode = sync.OnceValues(func() (*packettest.Node, error) {
	spec, err := loadPrograms()
	if err != nil {
		return nil, err
	}
	return packettest.NewNode(spec)
})

// bench is a node with the helpers of the tests.
type fixture struct {
	*packettest.Node
	testing.TB
	packettest.Addresses

	since uint32 // by the clock of lifetimes, before the last packet
}

// newFixture returns the node with fresh maps. Tests with it are not parallel.
func newFixture(t testing.TB, w packettest.Addresses) *fixture {
	t.Helper()
	return newFixtureOn(t, w, sharedNode)
}

// newFixtureOn is the same on a node with programs of its own.
func newFixtureOn(
	t testing.TB, w packettest.Addresses, load func() (*packettest.Node, error),
) *fixture {
	t.Helper()
	if os.Geteuid() != 0 {
		if os.Getenv("SLUICE_REQUIRE_PRIVILEGED") != "" {
			t.Fatal("programs can be run by root only")
		}
		t.Skip("programs can be run by root only")
	}
	node, err := load()
	require.NoError(t, err)
	require.NoError(t, node.Reset())
	// The pods are known by their addresses of this family.
	require.NoError(t, node.SetDevice(packettest.PodDevice, w.Pod))
	require.NoError(t, node.SetDevice(packettest.OtherPodDevice, w.OtherPod))
	return &fixture{Node: node, TB: t, Addresses: w}
}

// eachFamily runs a test for IPv4 and for IPv6.
func eachFamily(t *testing.T, test func(f *fixture)) {
	for _, w := range both {
		t.Run(w.Family, func(t *testing.T) { test(newFixture(t, w)) })
	}
}

// run runs a program, and checks what holds for every packet: what comes out
// unbroken was let through or redirected, and no drop is without its count and
// its event.
func (f *fixture) run(in packettest.Input) *packettest.Result {
	f.Helper()
	given := append([]byte(nil), in.Packet...)
	f.since = uptime(f)
	res, err := f.Run(in)
	require.NoError(f, err)
	switch res.Verdict {
	case packettest.Drop:
		drops := 0
		for reason, n := range res.Reasons {
			if reason.Drop() {
				drops += n
			}
		}
		require.Equal(f, 1, drops, "a drop is counted once: %v", res.Reasons)
	case packettest.Next, packettest.Redirect:
		if in.GSOSize == 0 && packettest.Verify(given) == nil {
			require.NoError(f, packettest.Verify(res.Out), "%v", res.Reasons)
		}
	default:
		f.Fatalf("%s: %s", in.Program, res.Verdict)
	}
	return res
}

// fromPod sends a packet of the pod. The layers are what follows Ethernet.
func (f *fixture) fromPod(layers ...packettest.Layer) *packettest.Result {
	f.Helper()
	return f.run(packettest.Input{Program: "from_pod", Device: packettest.PodDevice, Packet: f.podFrame(layers...)})
}

func (f *fixture) podFrame(layers ...packettest.Layer) []byte {
	ethernet := packettest.Ethernet{Dst: f.MAC(packettest.PodDevice), Src: packettest.PodMAC}
	return packettest.Build(append([]packettest.Layer{ethernet}, layers...)...)
}

// toPod sends a packet to the pod.
func (f *fixture) toPod(layers ...packettest.Layer) *packettest.Result {
	f.Helper()
	ethernet := packettest.Ethernet{Dst: packettest.PodMAC, Src: f.MAC(packettest.PodDevice)}
	return f.run(packettest.Input{Program: "to_pod", Device: packettest.PodDevice, Ingress: packettest.EgressDevice,
		Packet: packettest.Build(append([]packettest.Layer{ethernet}, layers...)...)})
}

// fromNetdev has a packet arrive at the egress device.
func (f *fixture) fromNetdev(layers ...packettest.Layer) *packettest.Result {
	f.Helper()
	return f.run(packettest.Input{Program: "from_netdev", Device: packettest.EgressDevice, Packet: f.wireFrame(layers...)})
}

func (f *fixture) wireFrame(layers ...packettest.Layer) []byte {
	ethernet := packettest.Ethernet{Dst: f.MAC(packettest.EgressDevice), Src: packettest.RouterMAC}
	return packettest.Build(append([]packettest.Layer{ethernet}, layers...)...)
}

// toNetdev has the host send a packet by the egress device.
func (f *fixture) toNetdev(mark uint32, layers ...packettest.Layer) *packettest.Result {
	f.Helper()
	ethernet := packettest.Ethernet{Src: f.MAC(packettest.EgressDevice), Dst: packettest.RouterMAC}
	return f.run(packettest.Input{Program: "to_netdev", Device: packettest.EgressDevice, Mark: mark,
		Packet: packettest.Build(append([]packettest.Layer{ethernet}, layers...)...)})
}

// fromOverlay has a packet arrive from a node.
func (f *fixture) fromOverlay(node netip.Addr, layers ...packettest.Layer) *packettest.Result {
	f.Helper()
	ethernet := packettest.Ethernet{Dst: f.MAC(packettest.OverlayDevice), Src: packettest.RouterMAC}
	return f.run(packettest.Input{Program: "from_overlay", Device: packettest.OverlayDevice, Overlay: node,
		Packet: packettest.Build(append([]packettest.Layer{ethernet}, layers...)...)})
}

// passed asserts that a packet of the pod goes its ordinary way, as it is.
func (f *fixture) passed(res *packettest.Result) {
	f.Helper()
	require.Equal(f, packettest.Next, res.Verdict, "%v", res.Reasons)
	for reason := range res.Reasons {
		require.False(f, reason.Drop(), "%v", res.Reasons)
	}
}

// checked asserts that it does so with the mark for the backstop.
func (f *fixture) checked(res *packettest.Result) {
	f.Helper()
	f.passed(res)
	require.EqualValues(f, packettest.MarkChecked, res.Mark&packettest.MarkMask, "mark")
}

// dropped asserts that a packet is dropped for a reason, which is counted and
// reported.
func (f *fixture) dropped(res *packettest.Result, reason bpf.Reason) {
	f.Helper()
	require.Equal(f, packettest.Drop, res.Verdict, "%v", res.Reasons)
	require.Equal(f, 1, res.Reasons[reason], "want %s, counted %v", reason, res.Reasons)
	for _, e := range res.Events {
		if e.Kind == bpf.EventDrop && e.Reason == reason {
			return
		}
	}
	f.Fatalf("no event of the drop: %s", reason)
}

// toGateway asserts that a packet is sent to a gateway over the overlay.
func (f *fixture) toGateway(res *packettest.Result, gateway netip.Addr) *packettest.Packet {
	f.Helper()
	require.Equal(f, packettest.Redirect, res.Verdict, "%v", res.Reasons)
	require.Equal(f, f.Index(packettest.OverlayDevice), res.IfIndex, "device")
	require.NotNil(f, res.Tunnel)
	require.Equal(f, gateway, res.Tunnel.Remote)
	require.EqualValues(f, packettest.VNI, res.Tunnel.VNI)
	require.Equal(f, f.Config.Underlay.Addr(), res.Tunnel.Local, "outer source")
	return f.parse(res)
}

// translated asserts that a packet leaves by the egress device with an address.
func (f *fixture) translated(res *packettest.Result, egress netip.Addr) *packettest.Packet {
	f.Helper()
	require.Equal(f, packettest.Redirect, res.Verdict, "%v", res.Reasons)
	require.Equal(f, f.Index(packettest.EgressDevice), res.IfIndex, "device")
	require.NotEqual(f, packettest.RedirectPeer, res.Kind)
	require.Equal(f, 1, res.Reasons[bpf.ReasonTranslated], "%v", res.Reasons)
	p := f.parse(res)
	require.Equal(f, egress, p.Src)
	return p
}

// delivered asserts that a reply goes to the pod's device.
func (f *fixture) delivered(res *packettest.Result) *packettest.Packet {
	f.Helper()
	require.Equal(f, packettest.Redirect, res.Verdict, "%v", res.Reasons)
	require.Equal(f, f.Index(packettest.PodDevice), res.IfIndex, "device")
	require.NotEqual(f, packettest.RedirectPeer, res.Kind, "to_pod would be skipped")
	require.False(f, res.Ingress)
	p := f.parse(res)
	if res.Kind == packettest.RedirectPlain {
		require.Equal(f, packettest.PodMAC, p.EthernetDst)
	}
	return p
}

func (f *fixture) parse(res *packettest.Result) *packettest.Packet {
	f.Helper()
	p, err := packettest.Parse(res.Out)
	require.NoError(f, err)
	return p
}

func (f *fixture) connection(t packettest.Tuple) *packettest.Connection {
	f.Helper()
	c, err := f.Connection(t)
	require.NoError(f, err)
	return c
}

func (f *fixture) translation(t packettest.Tuple) *packettest.Translation {
	f.Helper()
	n, err := f.Translation(t)
	require.NoError(f, err)
	return n
}

// expire has all connections be ones that expired, which are not collected yet.
func (f *fixture) expire() {
	f.Helper()
	f.expired(5)
}

// expired is the same, seconds ago.
func (f *fixture) expired(seconds uint32) {
	f.Helper()
	all, err := f.Connections()
	require.NoError(f, err)
	for t, c := range all {
		c.Lifetime = uptime(f) - seconds
		require.NoError(f, f.SetConnection(t, c))
	}
}

// age makes all translations older, by seconds.
func (f *fixture) age(seconds int64) {
	f.Helper()
	all, err := f.Translations()
	require.NoError(f, err)
	for t, to := range all {
		to.Created -= uint64(seconds * 1e9)
		to.Used -= uint32(seconds)
		require.NoError(f, f.SetTranslation(t, to))
	}
}

// selected makes the policy select the pod, with a gateway.
func (f *fixture) selected(v bpf.GatewayValue) {
	f.Helper()
	require.NoError(f, f.Select(f.Addresses, v))
}

// remote is the gateway row of another node.
func (f *fixture) remote(node netip.Addr) bpf.GatewayValue {
	return bpf.GatewayValue{Gateway: bpf.AddressFrom(node)}
}

// livesOn has a pod be on another node.
func (f *fixture) livesOn(pod, node netip.Addr) {
	f.Helper()
	prefix := netip.PrefixFrom(pod, pod.BitLen())
	require.NoError(f, f.SetIPCache(prefix, bpf.IPCacheInCluster|bpf.IPCachePod, node))
}

// second is the underlay address of the second node.
func second() netip.Addr { return packettest.World4.SecondNode }

// third is that of the third.
func third() netip.Addr { return packettest.World4.ThirdNode }
