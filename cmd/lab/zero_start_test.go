// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/bpf"
)

// zeroStartPods is how many pods TestZeroStart starts: make zero-start has 10,000.
const zeroStartPods = "SLUICE_ZERO_START_PODS"

const (
	zeroBatch = 20 // pods that are there at the same time
	zeroPort  = 7777
)

// zeroStart is a node on which pods start that send, and are sent to, from their first
// instant.
type zeroStart struct {
	*traffic
	plugin    *cniPlugin
	node      *Node
	forbidden *Pod // that no new pod may reach
	stranger  *Pod // that may reach no new pod

	number  int           // of pods so far
	strayed atomic.Uint64 // datagrams of new pods to the forbidden one
}

// With the plugin no packet of a new pod is let through that policies forbid, none to it,
// and none leaves by another way than policies say, whatever becomes of the agent. With an
// agent its first connection needs no second SYN.
func TestZeroStart(t *testing.T) {
	t.Parallel()
	pods := 4 * zeroBatch
	if text := os.Getenv(zeroStartPods); text != "" {
		var err error
		pods, err = strconv.Atoi(text)
		require.NoError(t, err)
	}
	z := newZeroStart(t)
	phases := []struct {
		name string
		run  func([]*newPod)
	}{
		{"agent up", z.agentUp},
		{"agent down", z.agentDown},
		{"agent starting", z.agentStarting},
		{"node booting", z.nodeBooting},
	}
	for batch := 0; batch*zeroBatch < pods; batch++ {
		phase := phases[batch%len(phases)]
		t.Logf("batch %d: %s", batch, phase.name)
		z.batch(phase.run)
	}
	require.Zero(t, z.strayed.Load(), "packets that policies forbid came to the forbidden pod")
}

func newZeroStart(t *testing.T) *zeroStart {
	tr := newTraffic(t, Options{Nodes: 1, NoAgents: true})
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Hour)
	t.Cleanup(cancel)
	tr.ctx = ctx
	z := &zeroStart{traffic: tr, plugin: buildPlugin(t), node: tr.Nodes[0]}
	z.plugin.follow(tr.Cluster)
	z.forbidden, z.stranger = tr.pod(z.node, "forbidden", "forbidden"), tr.pod(z.node, "stranger", "stranger")
	tr.policy(egress{name: "zero", app: "new", to: []netip.Prefix{WorldIPv6}, exits: []exit{{node: z.node.Name, ip: z.node.EgressIPv6}}})
	require.NoError(t, tr.ApplyYAML(`
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: zero, namespace: default}
spec:
  podSelector: {matchLabels: {app: new}}
  policyTypes: [Ingress, Egress]
  ingress: [{from: [{podSelector: {matchLabels: {app: friend}}}]}]
  egress: [{to: [{ipBlock: {cidr: "`+WorldIPv6.String()+`"}}]}]
`))
	require.NoError(t, tr.StartAgents())
	require.NoError(t, tr.AwaitAgents(tr.ctx))
	stop, err := Capture(z.forbidden.Namespace, PodDevice, func(p Packet) {
		if isZeroDatagram(p) {
			z.strayed.Add(1)
		}
	})
	require.NoError(t, err)
	t.Cleanup(stop)
	return z
}

func isZeroDatagram(p Packet) bool {
	return p.Protocol == unix.IPPROTO_UDP && len(p.Payload) >= 4 && binary.BigEndian.Uint16(p.Payload[2:]) == zeroPort
}

// newPod is a pod that starts.
type newPod struct {
	*Pod
	z      *zeroStart
	server netip.Addr // that it alone connects to

	started atomic.Bool   // its first process may run
	met     atomic.Uint64 // datagrams of the stranger since

	stop []func()
}

// batch has pods start in a phase, and go.
func (z *zeroStart) batch(run func([]*newPod)) {
	z.t.Helper()
	pods := make([]*newPod, zeroBatch)
	for i := range pods {
		pods[i] = z.newPod()
	}
	run(pods)
	for _, p := range pods {
		p.leave()
	}
}

// newPod connects a pod, of which agents know nothing, and has the stranger send to it.
func (z *zeroStart) newPod() *newPod {
	z.t.Helper()
	z.number++
	connected, err := z.ConnectPods(PodSpec{
		Node: z.node, Name: fmt.Sprintf("new-%d", z.number), Labels: map[string]string{"app": "new"},
	})
	require.NoError(z.t, err)
	raw := WorldIPv6.Addr().As16()
	binary.BigEndian.PutUint32(raw[12:], uint32(0x10000+z.number))
	p := &newPod{Pod: connected[0], z: z, server: netip.AddrFrom16(raw)}
	stop, err := Capture(p.Namespace, PodDevice, func(got Packet) {
		if isZeroDatagram(got) && p.started.Load() {
			p.met.Add(1)
		}
	})
	require.NoError(z.t, err)
	p.stop = append(p.stop, stop, p.sendFrom(z.stranger.Namespace, p.IPv6))
	return p
}

// sendFrom has a namespace send a datagram each millisecond until it is stopped.
func (p *newPod) sendFrom(from *Namespace, to netip.Addr) (stop func()) {
	conn, err := from.Dial(p.z.ctx, "udp", netip.AddrPortFrom(to, zeroPort))
	require.NoError(p.z.t, err)
	var done sync.WaitGroup
	ended := make(chan struct{})
	done.Go(func() {
		defer conn.Close()
		for {
			_, _ = conn.Write([]byte("zero")) // refused where nothing is
			select {
			case <-ended:
				return
			case <-time.After(time.Millisecond):
			}
		}
	})
	return func() { close(ended); done.Wait() }
}

// start has the plugin called, as often as it fails, and then the pod's first process
// run, which sends where it may not, and connects where it may.
func (p *newPod) start() (conn net.Conn, err error) {
	for p.z.plugin.call("ADD", p.Pod, "1s") != nil {
		if err := p.z.ctx.Err(); err != nil {
			return nil, err
		}
	}
	return p.run()
}

func (p *newPod) run() (net.Conn, error) {
	p.started.Store(true)
	p.stop = append(p.stop, p.sendFrom(p.Namespace, p.z.forbidden.IPv6))
	ctx, cancel := context.WithTimeout(p.z.ctx, time.Minute)
	defer cancel()
	return p.Dial(ctx, "tcp", netip.AddrPortFrom(p.server, Port))
}

// leave ends a pod, and checks what became of its packets.
func (p *newPod) leave() {
	t := p.z.t
	for i := len(p.stop) - 1; i >= 0; i-- {
		p.stop[i]()
	}
	require.Zero(t, p.met.Load(), "%s got packets that policies forbid", p.Name)
	for flow, packets := range p.z.World.Seen() {
		if flow.Destination == p.server {
			require.Equal(t, p.z.node.EgressIPv6, flow.Source, "%s: %d packets left by another way", p.Name, packets)
		}
	}
	require.NoError(t, p.z.plugin.call("DEL", p.Pod, "1s"))
	require.NoError(t, p.z.RemovePod(p.Pod))
}

// all starts pods at the same time, and checks that each has connected by its gateway.
func (z *zeroStart) all(pods []*newPod, check func(*newPod, net.Conn)) {
	z.t.Helper()
	conns, errs := make([]net.Conn, len(pods)), make([]error, len(pods))
	var all sync.WaitGroup
	for i, p := range pods {
		all.Go(func() { conns[i], errs[i] = p.start() })
	}
	all.Wait()
	for i, p := range pods {
		require.NoError(z.t, errs[i], p.Name)
		got, err := AskOn(z.ctx, conns[i])
		require.NoError(z.t, err, p.Name)
		require.Equal(z.t, z.node.EgressIPv6, got.Addr(), p.Name)
		check(p, conns[i])
		require.NoError(z.t, conns[i].Close())
	}
}

func (z *zeroStart) apply(pods []*newPod) {
	z.t.Helper()
	objects := make([]Object, len(pods))
	for i, p := range pods {
		objects[i] = pending(p.Pod)
	}
	require.NoError(z.t, z.Apply(objects...))
}

// agentUp: the first SYN of each pod is the only one.
func (z *zeroStart) agentUp(pods []*newPod) {
	z.apply(pods)
	// The agent follows files, which lag behind what an API server would say.
	require.NoError(z.t, AwaitRows(z.ctx, z.node.Agent, "endpoints", func(rows []map[string]any) error {
		if len(rows) < len(pods)+2 {
			return fmt.Errorf("%d endpoints", len(rows))
		}
		return nil
	}))
	z.all(pods, func(p *newPod, conn net.Conn) {
		require.Zero(z.t, retransmissions(z.t, conn), "%s sent its SYN more than once", p.Name)
	})
}

// agentDown: the pods start, and are held until there is an agent.
func (z *zeroStart) agentDown(pods []*newPod) {
	z.node.Agent.Kill()
	z.apply(pods)
	var all sync.WaitGroup
	for _, p := range pods {
		all.Go(func() {
			ctx, cancel := context.WithTimeout(z.ctx, silence)
			defer cancel()
			if err := z.plugin.call("ADD", p.Pod, "30s"); err != nil {
				z.t.Error(err)
				return
			}
			p.started.Store(true)
			if conn, err := p.Dial(ctx, "tcp", netip.AddrPortFrom(p.server, Port)); err == nil {
				conn.Close()
				z.t.Errorf("%s is not held", p.Name)
			}
		})
	}
	all.Wait()
	for flow := range z.World.Seen() {
		for _, p := range pods {
			require.NotEqual(z.t, p.server, flow.Destination, "%s is not held", p.Name)
		}
	}
	require.NoError(z.t, z.node.Agent.Start())
	for _, p := range pods {
		conn, err := p.run()
		require.NoError(z.t, err, p.Name)
		conn.Close()
	}
}

// agentStarting: the pods start while the agent does.
func (z *zeroStart) agentStarting(pods []*newPod) {
	z.apply(pods)
	z.node.Agent.Kill()
	require.NoError(z.t, z.node.Agent.Start())
	z.all(pods, func(*newPod, net.Conn) {})
}

// nodeBooting: nothing is pinned, so no pod starts before there is an agent.
func (z *zeroStart) nodeBooting(pods []*newPod) {
	z.node.Agent.Kill()
	_, err := bpf.CleanupLinks(z.node.Agent.BPFFS())
	require.NoError(z.t, err)
	_, err = bpf.Cleanup(z.node.Agent.BPFFS())
	require.NoError(z.t, err)
	require.NoError(z.t, os.RemoveAll(filepath.Clean(z.plugin.runDir(z.node))))
	z.apply(pods)
	require.ErrorContains(z.t, z.plugin.call("ADD", pods[0].Pod, "300ms"), "cannot start yet")
	require.NoError(z.t, z.node.Agent.Start())
	z.all(pods, func(*newPod, net.Conn) {})
}

// retransmissions is how many segments of a connection were sent again.
func retransmissions(t testing.TB, conn net.Conn) (count uint32) {
	raw, err := conn.(*net.TCPConn).SyscallConn()
	require.NoError(t, err)
	var failed error
	require.NoError(t, raw.Control(func(fd uintptr) {
		info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		if failed = err; err == nil {
			count = info.Total_retrans
		}
	}))
	require.NoError(t, failed)
	return count
}
