// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// zeroPod is a pod that talks, and connects to the world, from its first instant on.
type zeroPod struct {
	*Pod
	kind   string
	talker *talker

	conn       net.Conn // its first
	connErr    error
	connected  atomic.Bool
	resent     uint32        // SYNs of the first connection, but the first one
	ended      chan struct{} // closed when it has connected, or failed to
	cancel     func()        // ends the attempt to connect
	add, first time.Duration // of the ADD and of the first connection
}

// specs are those of the pods of the next batch. Each address gets a pod of another kind
// than in the last batch.
func (z *zero) specs() (specs []PodSpec) {
	z.batches++
	for i := range len(z.addrs) / 2 {
		kind := []string{"closed", "gated", "swapped", "open"}[(i+z.batches)%4]
		specs = append(specs, PodSpec{
			Node: z.node, Namespace: "default", Name: fmt.Sprintf("%s-%d-%d", kind, z.batches, i),
			Labels: map[string]string{"app": kind}, IPv4: z.addrs[2*i], IPv6: z.addrs[2*i+1],
		})
	}
	z.started += len(specs)
	return specs
}

// pendingPods creates the objects of pods, without status, as they are before an ADD. An
// agent that is up gets to know them: the lab's follow files, later than an API server's.
func (z *zero) pendingPods(specs []PodSpec, phase zeroPhase) {
	z.t.Helper()
	if z.plugin == nil {
		return
	}
	objects := make([]Object, len(specs))
	for i, spec := range specs {
		objects[i] = (&Pod{Spec: spec, Node: spec.Node}).Object()
		objects[i]["status"] = map[string]any{"phase": "Pending"}
	}
	require.NoError(z.t, z.Apply(objects...))
	if phase != agentUp {
		return
	}
	z.eventually("the agent knows the pods", func() error {
		rows, err := Rows[any](z.ctx, z.node.Agent, "endpoints")
		if err == nil && len(rows) < len(specs)+2 { // near and far
			err = fmt.Errorf("it knows %d endpoints", len(rows))
		}
		return err
	})
}

// runPods has the objects of pods tell of their addresses, as the kubelet does.
func (z *zero) runPods(pods []*zeroPod) {
	z.t.Helper()
	objects := make([]Object, len(pods))
	for i, p := range pods {
		objects[i] = p.Object()
	}
	require.NoError(z.t, z.Apply(objects...))
}

// start starts pods at the same time; only two of them where ADDs and connections are timed.
func (z *zero) start(specs []PodSpec, phase zeroPhase) []*zeroPod {
	z.t.Helper()
	var (
		all               sync.WaitGroup
		pods, errs        = make([]*zeroPod, len(specs)), make([]error, len(specs))
		building, running = make(chan bool, buildAtOnce), make(chan bool, len(specs))
	)
	if phase == agentUp && z.plugin != nil {
		running = make(chan bool, 2)
	}
	for i, spec := range specs {
		all.Go(func() {
			running <- true
			building <- true
			connected, err := z.ConnectPods(spec)
			<-building
			if errs[i] = err; err == nil {
				pods[i] = &zeroPod{
					Pod: connected[0], kind: spec.Labels["app"], ended: make(chan struct{}),
				}
				errs[i] = z.startOne(pods[i])
			}
			<-running
		})
	}
	all.Wait()
	require.NoError(z.t, errors.Join(errs...))
	return pods
}

// startOne calls the plugin, as often as the ADD fails, and then has the pod talk.
func (z *zero) startOne(p *zeroPod) (err error) {
	var ctx context.Context
	ctx, p.cancel = context.WithTimeout(z.ctx, patience)
	if z.plugin != nil {
		began := time.Now()
		if err := eventually(ctx, "the pod starts", func() error {
			return z.plugin.call("ADD", p.Pod, "30s")
		}); err != nil {
			return err
		}
		p.add = time.Since(began)
	}
	if p.talker, err = startTalker(p.Namespace, p.Spec.Name, talkPort, z.pause); err != nil {
		return err
	}
	p.talker.say(z.others...)
	go func() {
		defer close(p.ended)
		p.conn, p.first, p.connErr = p.dialWorld(ctx)
		if p.connErr == nil {
			p.resent, p.connErr = retransmissions(p.conn) // of the SYN, as nothing else was sent
		}
		p.connected.Store(p.connErr == nil)
	}()
	return nil
}

// dialWorld connects to the world, by a gateway on the pod's own node if it has one.
// Gateways on other nodes know a pod by the API, which the lab's files stand for.
func (p *zeroPod) dialWorld(ctx context.Context) (net.Conn, time.Duration, error) {
	server := ServerIPv6
	if p.kind == "swapped" {
		server = ServerIPv4
	}
	began := time.Now()
	conn, err := p.Dial(ctx, "tcp", netip.AddrPortFrom(server, Port))
	return conn, time.Since(began), err
}

// checkConnections checks that closed pods have not connected, and with which source the
// others have. While the agent is up the plugin spares them a second SYN, unless the kernel
// loses the first one, or what it needs to be sent: overflows is what it lost before.
func (z *zero) checkConnections(pods []*zeroPod, phase zeroPhase, overflows uint64) {
	z.t.Helper()
	for _, p := range pods {
		if p.kind == "closed" {
			p.cancel()
			<-p.ended
			require.Error(z.t, p.connErr, "%s has connected", p.Name)
			continue
		}
		<-p.ended
		require.NoError(z.t, p.connErr, p.Name)
		source, err := askSoon(z.ctx, p.conn)
		require.NoError(z.t, err, p.Name)
		require.Contains(z.t, z.sourcesInWorld(p), source.Addr(), p.Name)
		if phase == agentUp {
			if p.resent > 0 {
				z.resent++
			}
			if z.plugin != nil {
				if p.resent > 0 {
					require.NotEqual(z.t, overflows, z.overflows(),
						"%s has sent a SYN again, and the kernel lost no packet", p.Name)
				}
				z.adds = append(z.adds, p.add)
			}
			later, took, err := p.dialWorld(z.ctx)
			require.NoError(z.t, err, p.Name)
			require.NoError(z.t, later.Close())
			z.firsts, z.laters = append(z.firsts, p.first), append(z.laters, took)
		}
		require.NoError(z.t, p.conn.Close())
		p.cancel()
	}
}

// overflows returns how many packets the kernel has dropped since it booted because a CPU's
// queue of received packets was full: on a busy machine that happens to what the pods send.
func (z *zero) overflows() (dropped uint64) {
	z.t.Helper()
	text, err := os.ReadFile("/proc/net/softnet_stat")
	require.NoError(z.t, err)
	for line := range strings.Lines(string(text)) {
		n, err := strconv.ParseUint(strings.Fields(line)[1], 16, 32)
		require.NoError(z.t, err)
		dropped += n
	}
	return dropped
}

// end ends pods. The next batch uses their addresses again.
func (z *zero) end(pods []*zeroPod) {
	z.t.Helper()
	for _, p := range pods {
		p.talker.close()
		z.addTalker(p.talker)
		if z.plugin != nil {
			require.NoError(z.t, z.plugin.call("DEL", p.Pod, "1s"))
		}
		require.NoError(z.t, z.RemovePod(p.Pod))
	}
	z.eventually("the pods are gone", z.gone)
}

// retransmissions is how many segments of a connection were sent again.
func retransmissions(conn net.Conn) (count uint32, err error) {
	raw, err := conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		return 0, err
	}
	var failed error
	err = raw.Control(func(fd uintptr) {
		var info *unix.TCPInfo
		if info, failed = unix.GetsockoptTCPInfo(
			int(fd), unix.IPPROTO_TCP, unix.TCP_INFO,
		); failed == nil {
			count = info.Total_retrans
		}
	})
	return count, errors.Join(err, failed)
}
