// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// datagramSize is that of the frames of the datagrams that pods send here.
const datagramSize = 1000 + 8 + 20 + 14

// arrivals counts the datagrams that arrive outside, by the pods that they name.
type arrivals struct {
	mu   sync.Mutex
	from map[string]uint64
}

// watchArrivals counts those of some pods until the end of the test.
func (tr *traffic) watchArrivals(pods ...*Pod) *arrivals {
	tr.t.Helper()
	a := &arrivals{from: map[string]uint64{}}
	stop, err := Capture(tr.World.Namespace, worldDevice, func(p Packet) {
		if p.Protocol != unix.IPPROTO_UDP || p.Destination != ServerIPv4 || len(p.Payload) < 64 {
			return
		}
		name, _, _ := strings.Cut(string(p.Payload[8:64]), " ")
		a.mu.Lock()
		defer a.mu.Unlock()
		for _, pod := range pods {
			if name == pod.Name {
				a.from[name]++
			}
		}
	})
	require.NoError(tr.t, err)
	tr.t.Cleanup(stop)
	return a
}

// of is how many have arrived of some pods.
func (a *arrivals) of(pods ...*Pod) (n uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, p := range pods {
		n += a.from[p.Name]
	}
	return n
}

// stream has a pod send some 2,000 datagrams a second until the end of the test.
func (tr *traffic) stream(from *Pod) {
	tr.t.Helper()
	conn := tr.dial(from.Namespace, "udp", ServerIPv4)
	datagram := fmt.Appendf(nil, "%-1000s", from.Name+" ")
	ctx, stop := context.WithCancel(tr.ctx)
	var done sync.WaitGroup
	done.Go(func() {
		for ; ctx.Err() == nil; time.Sleep(10 * time.Millisecond) {
			for range 20 {
				_, err := conn.Write(datagram)
				if errors.Is(err, net.ErrClosed) {
					return
				}
			}
		}
	})
	tr.t.Cleanup(func() { stop(); done.Wait() })
}

// isWithin asserts that no more arrives of some pods than a limit in bits a second allows, while
// the gateway drops some packets for it, and that what it allows at once does arrive.
func (tr *traffic) isWithin(a *arrivals, gateway *Node, limit uint64, pods ...*Pod) {
	tr.t.Helper()
	dropped, was, begin := tr.count(gateway, bpf.ReasonBandwidth), a.of(pods...), time.Now()
	tr.eventually("the gateway drops what is over the limit", func() error {
		if n := tr.count(gateway, bpf.ReasonBandwidth) - dropped; n < 5000 {
			return fmt.Errorf("%d packets", n)
		}
		return nil
	})
	// What the programs have let pass before may arrive later, and the other way round.
	const slack = time.Second
	arrived, allowed := a.of(pods...)-was, time.Since(begin)+bpf.LimitBurst+slack
	most := uint64(allowed.Seconds()*float64(limit)/8/datagramSize) + uint64(runtime.NumCPU())
	tr.t.Logf("%d of at most %d datagrams in %s", arrived, most, allowed)
	require.LessOrEqual(tr.t, arrived, most)
	require.Greater(tr.t, arrived, uint64(bpf.LimitBurst.Seconds()*float64(limit)/8/datagramSize/2))
}

// A policy has what its limit allows of the gateway's bandwidth, however much its pods send, and
// each pod what the limit for pods allows; another policy has what it likes. Limits change while
// packets flow, and go.
func TestTrafficBandwidth(t *testing.T) {
	t.Parallel()
	const limit = 2_000_000
	tr := newTraffic(t, Options{Nodes: 2})
	n1, n2 := tr.Nodes[0], tr.Nodes[1]
	remote, local := tr.pod(n1, "remote", "a"), tr.pod(n2, "local", "a")
	free := tr.pod(n1, "free", "b")
	policy := func(name, app string, annotations map[string]any) {
		e := egress{
			name: name, app: app, to: []netip.Prefix{coveredIPv4},
			exits: []exit{{node: n2.Name, ip: n2.EgressIPv4}},
		}
		o := e.object()
		o["metadata"].(map[string]any)["annotations"] = annotations
		require.NoError(t, tr.Apply(o))
	}
	limited := func(all, each tables.Bandwidth) {
		annotations := map[string]any{}
		for name, limit := range map[string]tables.Bandwidth{
			tables.BandwidthAnnotation: all, tables.PodBandwidthAnnotation: each,
		} {
			if limit != 0 {
				annotations[name] = limit.String()
			}
		}
		policy("limited", "a", annotations)
		inTable := func(rows []tables.EgressLimit) error {
			var row tables.EgressLimit
			if len(rows) > 0 {
				row = rows[0]
			}
			if row.Bandwidth != all || row.PodBandwidth != each {
				return fmt.Errorf("the limits are %v", rows)
			}
			return nil
		}
		require.NoError(t, AwaitRows(tr.ctx, n2.Agent, "egress-limits", inTable))
		require.NoError(t, n2.Agent.AwaitSettled(tr.ctx))
	}
	policy("free", "b", nil)
	limited(limit, 0)
	tr.inForce([]string{"limited", "free"}, remote, local, free)
	require.NoError(t, tr.AwaitSources(tr.ctx, true, []*Node{n2}, remote, local, free))

	a := tr.watchArrivals(remote, local, free)
	for _, p := range []*Pod{remote, local, free} {
		tr.stream(p)
	}
	tr.isWithin(a, n2, limit, remote, local)
	require.Greater(t, a.of(free), a.of(remote, local))

	limited(0, limit/4)
	tr.isWithin(a, n2, limit/4, remote)
	tr.isWithin(a, n2, limit/4, local)
	tr.reported(n2, remote.Name, bpf.ReasonBandwidth)
	tr.reported(n2, local.Name, bpf.ReasonBandwidth)
	require.NoError(t, AwaitRows(tr.ctx, n2.Agent, "drops", func(rows []dropRow) error {
		for _, r := range rows {
			require.False(t, r.Pod == free.Name && r.Reason == bpf.ReasonBandwidth.String(), "%v", r)
		}
		return nil
	}))

	limited(0, 0)
	dropped, was := tr.count(n2, bpf.ReasonBandwidth), a.of(remote, local)
	tr.eventually("both pods have what they like", func() error {
		if n := a.of(remote, local) - was; n < 1000 {
			return fmt.Errorf("%d datagrams", n)
		}
		return nil
	})
	require.Equal(t, dropped, tr.count(n2, bpf.ReasonBandwidth))
	tr.noLeaks(n2.EgressIPv4)
}
