// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	vn "github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/bpf"
)

// swarm is many pods that do nothing but send: each is a device pair of its node,
// whose other ends are all in one namespace.
type swarm struct {
	*Namespace
	node  *Node
	pods  []swarmPod
	first int

	packets int // a packet socket

	mu   sync.Mutex // of what follows
	sent map[netip.Addr]uint64
}

type swarmPod struct {
	addr   netip.Addr
	device int // in the swarm's namespace
	mac    net.HardwareAddr
	router net.HardwareAddr // the node's end
	app    string
}

// swarmHosts is above the numbers of the lab's own pods.
const swarmHosts = 1000

// newSwarm connects pods to a node, without objects.
func newSwarm(tr *traffic, node *Node, first, count int, app func(int) string) *swarm {
	tr.t.Helper()
	s := &swarm{node: node, first: first, packets: -1, sent: map[netip.Addr]uint64{}}
	var err error
	s.Namespace, err = newNamespace(fmt.Sprintf("swarm of %s", node.Name))
	require.NoError(tr.t, err)
	tr.t.Cleanup(s.close)
	// Nothing is to be sent but what the test does.
	require.NoError(tr.t, s.Sysctl("net.ipv6.conf.default.disable_ipv6=1", "net.ipv6.conf.all.disable_ipv6=1"))
	for i := range count {
		p, err := s.connect(first+i, app(i))
		require.NoError(tr.t, err)
		s.pods = append(s.pods, p)
	}
	require.NoError(tr.t, s.Run(func() (err error) {
		s.packets, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		return err
	}))
	return s
}

func (s *swarm) close() {
	if s.packets >= 0 {
		_ = unix.Close(s.packets)
	}
	s.Namespace.Close()
}

func (s *swarm) connect(number int, app string) (swarmPod, error) {
	v4, _ := podNetworks(s.node.number)
	addr := hostOf(v4, swarmHosts+number)
	mac := net.HardwareAddr{2, 0, 0, byte(s.node.number), byte(number >> 8), byte(number)}
	router := net.HardwareAddr{2, 1, 0, byte(s.node.number), byte(number >> 8), byte(number)}
	there, here := fmt.Sprintf("swarm%d", number), fmt.Sprintf("pod%d", number)
	err := s.node.handle.LinkAdd(&vn.Veth{
		LinkAttrs: vn.LinkAttrs{Name: there, MTU: defaultMTU, HardwareAddr: router, Flags: net.FlagUp},
		PeerName:  here, PeerNamespace: vn.NsFd(s.FD()), PeerMTU: defaultMTU, PeerHardwareAddr: mac,
	})
	if err != nil {
		return swarmPod{}, fmt.Errorf("add device %s: %w", there, err)
	}
	if err := s.up(here); err != nil {
		return swarmPod{}, err
	}
	link, err := s.node.link(there)
	if err != nil {
		return swarmPod{}, err
	}
	// What answers come needs no address of the pod to be asked for.
	err = s.node.handle.NeighSet(&vn.Neigh{
		LinkIndex: link.Attrs().Index, IP: addr.AsSlice(), HardwareAddr: mac, State: vn.NUD_PERMANENT,
	})
	if err != nil {
		return swarmPod{}, fmt.Errorf("add neighbour %s: %w", addr, err)
	}
	if err := s.node.addRoute(host(addr), netip.Addr{}, there); err != nil {
		return swarmPod{}, err
	}
	peer, err := s.link(here)
	if err != nil {
		return swarmPod{}, err
	}
	return swarmPod{addr, peer.Attrs().Index, mac, router, app}, nil
}

// objects are the manifests of the pods.
func (s *swarm) objects() (objects []Object) {
	for i, p := range s.pods {
		objects = append(objects, Object{
			"apiVersion": "v1", "kind": "Pod",
			"metadata": map[string]any{
				"name": fmt.Sprintf("swarm-%d-%d", s.node.number, s.first+i), "namespace": "default", "labels": map[string]any{"app": p.app},
			},
			"spec": map[string]any{"nodeName": s.node.Name, "serviceAccountName": "default"},
			"status": map[string]any{
				"phase": "Running", "podIP": p.addr.String(), "podIPs": []any{map[string]any{"ip": p.addr.String()}},
				"hostIP": s.node.IPv4.String(),
			},
		})
	}
	return objects
}

// swarmMagic begins the datagrams of the swarm; the pod's address follows.
const swarmMagic = 0x7377_6172

// send sends a datagram, and a SYN, of each pod to a server.
func (s *swarm) send(to netip.Addr, round int, app string, withSYN bool) error {
	for _, p := range s.pods {
		if p.app != app {
			continue
		}
		payload := binary.BigEndian.AppendUint32(nil, swarmMagic)
		payload = append(payload, p.addr.AsSlice()...)
		packets := [][]byte{ipv4UDP(p.addr, to, 5000, Port, payload)}
		if withSYN { // of some connections, as an egress IP has only so many ports
			packets = append(packets, ipv4SYN(p.addr, to, uint16(20000+round%4), Port))
		}
		for _, packet := range packets {
			frame := append(ethernet(p.router, p.mac, unix.ETH_P_IP), packet...)
			if err := s.sendFrame(p, frame); err != nil {
				return fmt.Errorf("send from pod %s: %w", p.addr, err)
			}
		}
		s.mu.Lock()
		s.sent[p.addr]++
		s.mu.Unlock()
	}
	return nil
}

func (s *swarm) sendFrame(p swarmPod, frame []byte) error {
	for {
		err := unix.Sendto(s.packets, frame, 0, &unix.SockaddrLinklayer{Ifindex: p.device, Protocol: unix.ETH_P_IP >> 8})
		if !errors.Is(err, unix.ENOBUFS) && !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// swarmView is what the world got of swarms: the judge.
type swarmView struct {
	mu      sync.Mutex
	dropped uint64                               // by the machine, before
	bad     map[string]uint64                    // to covered destinations, from other sources than the egress IPs
	covered map[netip.Addr]uint64                // datagrams from egress IPs, by the pod that their payload names
	others  map[netip.Addr]map[netip.Addr]uint64 // to others, by pod and source
}

func watchSwarm(tr *traffic, egress ...netip.Addr) *swarmView {
	tr.t.Helper()
	v := &swarmView{dropped: machineDrops(tr.t), bad: map[string]uint64{}, covered: map[netip.Addr]uint64{}, others: map[netip.Addr]map[netip.Addr]uint64{}}
	allowed := map[netip.Addr]bool{}
	for _, ip := range egress {
		allowed[ip] = true
	}
	stop, err := Capture(tr.World.Namespace, worldDevice, func(p Packet) {
		if !WorldIPv4.Contains(p.Destination) {
			return
		}
		v.mu.Lock()
		defer v.mu.Unlock()
		if coveredIPv4.Contains(p.Destination) && !allowed[p.Source] {
			v.bad[Flow{p.Protocol, 0, p.Source, p.Destination}.String()]++
		}
		const header, size = 8, 8 + 8
		if p.Protocol != unix.IPPROTO_UDP || len(p.Payload) < size || binary.BigEndian.Uint32(p.Payload[header:]) != swarmMagic {
			return
		}
		pod := netip.AddrFrom4([4]byte(p.Payload[header+4:]))
		if coveredIPv4.Contains(p.Destination) {
			if allowed[p.Source] {
				v.covered[pod]++
			}
			return
		}
		if v.others[pod] == nil {
			v.others[pod] = map[netip.Addr]uint64{}
		}
		v.others[pod][p.Source]++
	})
	require.NoError(tr.t, err)
	tr.t.Cleanup(stop)
	return v
}

// sender has swarms send, over and over, until it is stopped.
type sender struct {
	stop chan struct{}
	done sync.WaitGroup
	err  error
}

func startSwarms(rate time.Duration, swarms ...*swarm) *sender {
	s := &sender{stop: make(chan struct{})}
	s.done.Go(func() {
		ticker := time.NewTicker(rate)
		defer ticker.Stop()
		for round := 0; ; round++ {
			for _, w := range swarms {
				s.err = errors.Join(w.send(ServerIPv4, round, "chosen", true), w.send(notCoveredIPv4, round, "none", false))
				if s.err != nil {
					return
				}
			}
			select {
			case <-s.stop:
				return
			case <-ticker.C:
			}
		}
	})
	return s
}

func (s *sender) end(t *testing.T) {
	t.Helper()
	close(s.stop)
	s.done.Wait()
	require.NoError(t, s.err)
}

// apps has three pods of four selected by the policy.
func apps(i int) string {
	if i%4 == 0 {
		return "none"
	}
	return "chosen"
}

// None of a thousand pods, which send from the first moment of their life, is ever
// seen from another source than the egress IP, also while the agent is down; and
// those that no policy selects lose nothing.
func TestTrafficTimeZero(t *testing.T) {
	t.Parallel()
	const perNode, later = 500, 100
	tr := newTraffic(t, Options{Nodes: 2, NoCapture: true})
	n1, n2 := tr.Nodes[0], tr.Nodes[1]
	// One pod that is known, to know that the policy is in force.
	known := tr.pod(n1, "known", "chosen")
	tr.policy(egress{name: "bank", app: "chosen", to: []netip.Prefix{coveredIPv4}, exits: []exit{{node: n2.Name, ip: n2.EgressIPv4}}})
	tr.inForce([]string{"bank"}, known)
	tr.becomes(known.Namespace, ServerIPv4, n2.EgressIPv4)
	view := watchSwarm(tr, n2.EgressIPv4)

	begin := time.Now()
	swarms := []*swarm{newSwarm(tr, n1, 0, perNode, apps), newSwarm(tr, n2, 0, perNode, apps)}
	t.Logf("%d pods are connected after %s", 2*perNode, time.Since(begin))
	s := startSwarms(200*time.Millisecond, swarms...)
	tr.held(n1, n2)
	begin = time.Now()
	for _, w := range swarms {
		require.NoError(t, tr.Apply(w.objects()...))
	}
	view.serves(tr, swarms...)
	t.Logf("all are served %s after their manifests came", time.Since(begin))
	for _, n := range tr.Nodes {
		tr.drops(n)
	}
	s.end(t)
	view.judge(tr, swarms...)

	// Further pods, while the agent of their node is dead.
	n1.Agent.Kill()
	before := tr.count(n1, bpf.ReasonNotChecked)
	orphans := newSwarm(tr, n1, perNode, later, apps)
	require.NoError(t, tr.Apply(orphans.objects()...))
	s = startSwarms(100*time.Millisecond, append(swarms, orphans)...)
	tr.eventually("the backstop has dropped what the pods sent", func() error {
		if n := tr.count(n1, bpf.ReasonNotChecked) - before; n < 10*later {
			return fmt.Errorf("%d drops", n)
		}
		return nil
	})
	require.Zero(t, view.served(orphans), "pods without an agent")
	require.NoError(t, n1.Agent.Start())
	view.serves(tr, orphans)
	s.end(t)
	view.judge(tr, append(swarms, orphans)...)
	for _, n := range tr.Nodes {
		tr.drops(n)
	}
}

// held waits until the nodes have dropped much of what unknown pods send.
func (tr *traffic) held(nodes ...*Node) {
	tr.t.Helper()
	for _, n := range nodes {
		tr.eventually("unknown pods are held on "+n.Name, func() error {
			if held := tr.count(n, bpf.ReasonNotChecked) + tr.count(n, bpf.ReasonPodNotReady); held < 1000 {
				return fmt.Errorf("%d packets are held", held)
			}
			return nil
		})
	}
}

// serves waits until the world has got something of each chosen pod.
func (v *swarmView) serves(tr *traffic, swarms ...*swarm) {
	tr.t.Helper()
	// The kernel takes its time for each program that is attached.
	ctx, cancel := context.WithTimeout(tr.ctx, 5*time.Minute)
	defer cancel()
	require.NoError(tr.t, eventually(ctx, "all pods are served", func() error {
		for _, w := range swarms {
			if served, all := v.served(w), w.chosen(); served < all {
				return fmt.Errorf("%d of %d pods of %s are", served, all, w.node.Name)
			}
		}
		return nil
	}))
}

// served is of how many pods the world has got something from an egress IP.
func (v *swarmView) served(w *swarm) (pods int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, p := range w.pods {
		if v.covered[p.addr] > 0 {
			pods++
		}
	}
	return pods
}

// chosen is how many pods the policy selects.
func (s *swarm) chosen() (pods int) {
	for _, p := range s.pods {
		if p.app == "chosen" {
			pods++
		}
	}
	return pods
}

// judge asserts that nothing leaked and that who has no policy lost nothing.
func (v *swarmView) judge(tr *traffic, swarms ...*swarm) {
	tr.t.Helper()
	tr.eventually("the world has all of the pods without policy", func() error {
		v.mu.Lock()
		defer v.mu.Unlock()
		machine := machineDrops(tr.t) - v.dropped
		for _, w := range swarms {
			for _, p := range w.pods {
				if p.app != "none" {
					continue
				}
				got, sent := v.others[p.addr][w.node.OutsideIPv4], w.sent[p.addr]
				if got > sent || sent-got > machine {
					return fmt.Errorf("of pod %s came %d of %d: %v", p.addr, got, sent, v.others[p.addr])
				}
				machine -= sent - got
				if len(v.others[p.addr]) != 1 {
					return fmt.Errorf("pod %s had the sources %v", p.addr, v.others[p.addr])
				}
			}
		}
		return nil
	})
	v.mu.Lock()
	defer v.mu.Unlock()
	require.Empty(tr.t, v.bad, "packets with another source than the egress IP")
}
