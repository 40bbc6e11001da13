// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"net"
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/stretchr/testify/require"
	vn "github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

const overlayName = "sluice_vxlan"

func newOverlaySetup(t *testing.T) (*network, *overlayDevices) {
	n := newNetwork(t)
	n.addVeth("underlay", "peer", 0)
	for _, device := range []string{"underlay", "peer"} {
		require.NoError(t, n.LinkSetUp(n.link(device)))
	}
	for _, addr := range []string{"192.0.2.1/24", "2001:db8::1/64"} {
		a, err := vn.ParseAddr(addr)
		require.NoError(t, err)
		a.Flags = unix.IFA_F_NODAD
		require.NoError(t, n.AddrAdd(n.link("underlay"), a))
	}
	bpffs := testBPFFS(t)
	l := links{dir: bpf.LinksDir(bpffs), programs: bpf.ProgramsDir(bpffs), ns: namespace(n.ns)}
	return n, &overlayDevices{
		datapath: loadPrograms(t), ns: namespace(n.ns), links: func() links { return l },
	}
}

func overlayRow(local string) *tables.OverlayDevice {
	return &tables.OverlayDevice{Name: overlayName, VNI: 7, Port: 8474, MTU: 1430, Local: netip.MustParseAddr(local)}
}

func (n *network) vxlan(name string) *vn.Vxlan {
	n.t.Helper()
	device, ok := n.link(name).(*vn.Vxlan)
	require.True(n.t, ok)
	return device
}

func TestOverlayDevice(t *testing.T) {
	for _, local := range []string{"192.0.2.1", "2001:db8::1"} {
		t.Run(local, func(t *testing.T) {
			n, o := newOverlaySetup(t)
			row := overlayRow(local)
			update := func() error { return o.Update(t.Context(), nil, 0, row) }
			require.NoError(t, update())
			device := n.vxlan(overlayName)
			require.True(t, device.FlowBased)
			require.False(t, device.Learning)
			require.Equal(t, 8474, device.Port)
			require.Equal(t, 1430, device.MTU)
			require.NotZero(t, device.Flags&net.FlagUp)
			require.Equal(t, []ebpf.ProgramID{programID(t, o.datapath.Program(bpf.ProgramFromOverlay))},
				n.running(device.Index, ebpf.AttachTCXIngress), "it is never up without the program")
			require.True(t, net.ParseIP(local).Equal(device.SrcAddr), "%s", device.SrcAddr)
			addrs, err := n.AddrList(device, vn.FAMILY_ALL)
			require.NoError(t, err)
			require.Empty(t, addrs, "not even a link-local address")

			require.NoError(t, update())
			require.Equal(t, device.Index, n.vxlan(overlayName).Index, "it is as wanted")

			row.MTU = 1400
			require.NoError(t, n.LinkSetDown(device))
			require.NoError(t, update())
			require.Equal(t, device.Index, n.vxlan(overlayName).Index, "it can be adjusted")
			require.Equal(t, 1400, n.vxlan(overlayName).MTU)
			require.NotZero(t, n.vxlan(overlayName).Flags&net.FlagUp)

			row.Port = 8475
			require.NoError(t, update())
			require.NotEqual(t, device.Index, n.vxlan(overlayName).Index, "it had to be replaced")
			require.Equal(t, 8475, n.vxlan(overlayName).Port)

			require.NoError(t, o.Delete(t.Context(), nil, 0, row))
			require.NoError(t, o.Delete(t.Context(), nil, 0, row))
			_, err = n.LinkByName(overlayName)
			require.ErrorAs(t, err, &vn.LinkNotFoundError{})
		})
	}
}

// TestOverlayDeviceStaysDown: without its program the device takes nothing, as the host would take
// what is in packets of any machine.
func TestOverlayDeviceStaysDown(t *testing.T) {
	n, o := newOverlaySetup(t)
	good := o.links
	bad := good()
	bad.dir = "/proc/none"
	o.links = func() links { return bad }
	row := overlayRow("192.0.2.1")
	err := o.Update(t.Context(), nil, 0, row)
	require.ErrorContains(t, err, "before device sluice_vxlan is set up")
	require.Zero(t, n.vxlan(overlayName).Flags&net.FlagUp)
	o.links = good
	require.NoError(t, o.Update(t.Context(), nil, 0, row))
	require.NotZero(t, n.vxlan(overlayName).Flags&net.FlagUp)
}

func TestOverlayPortIsTaken(t *testing.T) {
	n, o := newOverlaySetup(t)
	for name, other := range map[string]*vn.Vxlan{
		"external": {FlowBased: true, Port: 8474},
		"ordinary": {VxlanId: 5, Port: 8474},
	} {
		other.LinkAttrs = vn.NewLinkAttrs()
		other.Name = name
		require.NoError(t, n.LinkAdd(other))
		require.NoError(t, n.LinkSetUp(n.link(name)))
		row := overlayRow("192.0.2.1")
		err := o.Update(t.Context(), nil, 0, row)
		require.ErrorContains(t, err, "device sluice_vxlan cannot have UDP port 8474, which VXLAN device "+name+" uses", name)
		n.removeDevice(name)
		require.NoError(t, o.Update(t.Context(), nil, 0, row), "it is free again")
		require.NoError(t, o.Delete(t.Context(), nil, 0, row))
	}
	n.do(func() {
		socket, err := net.ListenUDP("udp4", &net.UDPAddr{Port: 8474})
		require.NoError(t, err)
		defer socket.Close()
		err = o.Update(t.Context(), nil, 0, overlayRow("192.0.2.1"))
		require.ErrorContains(t, err, "which another program uses")
	})
}

func TestDevicesOfOthersAreLeftAlone(t *testing.T) {
	n, o := newOverlaySetup(t)
	attrs := vn.NewLinkAttrs()
	attrs.Name = "other"
	require.NoError(t, n.LinkAdd(&vn.Vxlan{LinkAttrs: attrs, FlowBased: true, Port: 4790}))
	require.NoError(t, o.Update(t.Context(), nil, 0, overlayRow("192.0.2.1")))

	require.NoError(t, o.Prune(t.Context(), nil, rowsOf(overlayRow("192.0.2.1"))))
	n.vxlan(overlayName)
	require.NoError(t, o.Prune(t.Context(), nil, rowsOf[*tables.OverlayDevice]()))
	_, err := n.LinkByName(overlayName)
	require.ErrorAs(t, err, &vn.LinkNotFoundError{})
	n.vxlan("other")

	attrs.Name = overlayName
	require.NoError(t, n.LinkAdd(&vn.Bridge{LinkAttrs: attrs}))
	err = o.Update(t.Context(), nil, 0, overlayRow("192.0.2.1"))
	require.ErrorContains(t, err, "device sluice_vxlan is there already, and a bridge: remove or rename it")
}

func TestOverlayFromAddressThatIsNotThere(t *testing.T) {
	n, o := newOverlaySetup(t)
	err := o.Update(t.Context(), nil, 0, overlayRow("192.0.2.77"))
	if err == nil {
		t.Skip("this kernel does not bind the overlay's socket to its address")
	}
	require.ErrorContains(t, err, "the node has no address 192.0.2.77")
	require.NoError(t, o.Update(t.Context(), nil, 0, overlayRow("192.0.2.1")))
	require.NotZero(t, n.vxlan(overlayName).Flags&net.FlagUp)
}

func TestCleanupOverlay(t *testing.T) {
	n, o := newOverlaySetup(t)
	require.NoError(t, o.Update(t.Context(), nil, 0, overlayRow("192.0.2.1")))
	for _, want := range [][]string{{overlayName}, nil} {
		var (
			removed []string
			err     error
		)
		n.do(func() { removed, err = CleanupOverlay() })
		require.NoError(t, err)
		require.Equal(t, want, removed)
	}
}
