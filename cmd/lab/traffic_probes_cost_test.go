// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	vn "github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/bpf/datapath/packettest"
	"github.com/sluice-net/sluice/tables"
)

// envProbing is how many nodes probe a gateway.
const envProbing = "SLUICE_TEST_PROBING_NODES"

// probing is the network of the simulated nodes.
var probing = netip.MustParsePrefix("172.20.0.0/16")

// TestTrafficProbesAnswered sends a gateway the probes of simulated nodes by turns, and logs the
// time that its kernel takes to answer one, from the frame at its device to the answer at the other
// end of the wire: what docs/egress-semantics.md says of the cost. Its agent stands still
// meanwhile.
func TestTrafficProbesAnswered(t *testing.T) {
	t.Parallel()
	count := 50
	if text := os.Getenv(envProbing); text != "" {
		var err error
		count, err = strconv.Atoi(text)
		require.NoError(t, err, envProbing)
	}
	p := newProbesTest(t)
	gateway := p.Nodes[1]
	nodes := p.addProbing(count)
	w := p.wire(gateway)
	var probes, others [][]byte
	for i, node := range nodes {
		frame := w.probe(node, uint64(i))
		probes = append(probes, frame)
		frame = slices.Clone(frame)
		binary.BigEndian.PutUint16(frame[12:], unix.ETH_P_802_EX1+1) // that no host takes
		others = append(others, frame)
	}
	const rounds, batch = 2_000, 50
	var answered, ignored times
	for round := range rounds {
		for _, b := range []struct {
			frames [][]byte
			took   *times
			want   uint64
		}{{probes, &answered, batch}, {others, &ignored, 0}} {
			before, begin := w.sent(), time.Now()
			for i := range batch {
				w.send(b.frames[(round*batch+i)%count])
			}
			took := time.Since(begin)
			// What the kernel puts off is in no round, as it would not be in its time.
			if w.sent()-before == b.want {
				*b.took = append(*b.took, took/batch)
			}
		}
	}
	require.NotEmpty(t, answered, "no round had all its probes answered")
	slices.Sort(answered)
	slices.Sort(ignored)
	t.Logf(
		"probes of %d nodes: %s each, at least %s; frames that the gateway ignores: %s, at least %s "+
			"(medians of %d rounds of %d)", count, answered[len(answered)/2], answered[0],
		ignored[len(ignored)/2], ignored[0], len(answered), batch)
}

// addProbing adds nodes of which there is no more than their objects and addresses, and waits until
// the programs of all nodes know them.
func (p *probesTest) addProbing(count int) (nodes []netip.Addr) {
	p.t.Helper()
	var text strings.Builder
	addr := probing.Addr()
	for i := range count {
		addr = addr.Next()
		nodes = append(nodes, addr)
		fmt.Fprintf(&text, "---\n{apiVersion: v1, kind: Node, metadata: {name: probing-%d}, "+
			"status: {addresses: [{type: InternalIP, address: %s}]}}\n", i, addr)
	}
	file := filepath.Join(p.ManifestDir(), "probing.yaml")
	require.NoError(p.t, replaceFile(file, []byte(text.String())))
	for _, n := range p.Nodes {
		require.NoError(p.t, AwaitRows(p.ctx, n.Agent, "map-nodes",
			func(rows []MapRow) error {
				if len(rows) < count {
					return fmt.Errorf("%d nodes", len(rows))
				}
				return nil
			}))
	}
	return nodes
}

// wire is the other end of the cable of a node, which is in nothing else.
type wire struct {
	t       *testing.T
	node    *Node
	socket  int
	device  int // the other end
	headers packettest.Ethernet
}

// wire unplugs a node. What it sends to simulated nodes leaves by the cable.
func (p *probesTest) wire(n *Node) *wire {
	p.t.Helper()
	port, err := p.fabric.link(n.Name + "-" + n.device)
	require.NoError(p.t, err)
	device, err := n.link(n.device)
	require.NoError(p.t, err)
	w := &wire{t: p.t, node: n, device: port.Attrs().Index, headers: packettest.Ethernet{
		Dst: packettest.MAC(device.Attrs().HardwareAddr), Src: packettest.RouterMAC,
	}}
	router := hostOf(UnderlayIPv4, 250)
	require.NoError(p.t, n.handle.NeighSet(&vn.Neigh{
		LinkIndex: device.Attrs().Index, IP: router.AsSlice(), State: vn.NUD_PERMANENT,
		HardwareAddr: w.headers.Src[:],
	}))
	require.NoError(p.t, n.addRoute(probing, router, n.device))
	require.NoError(p.t, p.fabric.Run(func() (err error) {
		w.socket, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		return err
	}))
	p.t.Cleanup(func() { _ = unix.Close(w.socket) })
	require.NoError(p.t,
		unix.SetsockoptInt(w.socket, unix.SOL_PACKET, unix.PACKET_QDISC_BYPASS, 1))
	require.NoError(p.t, unix.Kill(n.Agent.PID(), unix.SIGSTOP))
	p.t.Cleanup(func() { _ = unix.Kill(n.Agent.PID(), unix.SIGCONT) })
	p.cut(n)
	return w
}

// probe returns the frame of a probe of a node.
func (w *wire) probe(from netip.Addr, nonce uint64) []byte {
	inside := bpf.ProbeFrame(*overlayKey(overlayKeyA), bpf.ProbeRequest, from, w.node.IPv4, nonce)
	vxlan := []byte{8, 0, 0, 0, 0, 0, 7, 0}
	return packettest.Build(w.headers, packettest.IP(from, w.node.IPv4),
		packettest.UDP{Src: 40_000, Dst: overlayPort, NoChecksum: true},
		packettest.Payload(append(vxlan, inside...)))
}

func (w *wire) send(frame []byte) {
	require.NoError(w.t, unix.Sendto(w.socket, frame, 0, &unix.SockaddrLinklayer{Ifindex: w.device}))
}

// sent returns how many packets the node has sent over the overlay.
func (w *wire) sent() uint64 {
	w.t.Helper()
	device, err := w.node.link(tables.OverlayDeviceName)
	require.NoError(w.t, err)
	return device.Attrs().Statistics.TxPackets
}
