// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/cmd/e2e/cluster"
)

const (
	samples   = 200
	pollEvery = 50 * time.Microsecond
)

// TestLatency measures from an API call to the map entry that follows from it:
// pods get their address one at a time, and a policy that selects others with
// their labels selects them. It fails only if an entry never comes.
func TestLatency(t *testing.T) {
	c := startCluster(t)
	populate(c)
	c.Apply(blue)
	a := newAgent(t, c)
	a.startReady()
	k := a.kernel()
	a.converge(c, k)
	v, err := k.view()
	require.NoError(t, err)
	defer v.close()

	var call, ipcache, selected []time.Duration
	for i := range samples {
		name, addr := fmt.Sprintf("latency-%d", i), netip.AddrFrom4([4]byte{10, 1, 1, byte(i)})
		c.CreatePod(cluster.Pod{Namespace: "prod", Name: name, Node: localNode, Labels: map[string]string{"app": "web"}})
		pods := c.Client().CoreV1().Pods("prod")
		pod, err := pods.Get(t.Context(), name, metav1.GetOptions{})
		require.NoError(t, err)
		pod.Status.PodIP, pod.Status.PodIPs = addr.String(), []corev1.PodIP{{IP: addr.String()}}

		began := time.Now()
		_, err = pods.UpdateStatus(t.Context(), pod, metav1.UpdateOptions{})
		require.NoError(t, err)
		returned := time.Now()
		known, chosen := a.awaitEntries(v, addr)
		call = append(call, returned.Sub(began))
		ipcache = append(ipcache, max(0, known.Sub(returned)))
		selected = append(selected, max(0, chosen.Sub(returned)))
	}
	// An entry that was there when the call returned counts as 0.
	t.Logf("latency of %d pods that get an address, from the API call's return to sluice_ipcache: %s", samples, percentiles(ipcache))
	t.Logf(
		"latency of %d pods that get an address, from the API call's return to sluice_pods: %s",
		samples, percentiles(selected),
	)
	t.Logf("the API calls themselves took: %s", percentiles(call))
	a.converge(c, k)
}

// awaitEntries returns when the maps have an address, and its egress ruleset.
func (a *agent) awaitEntries(v *view, addr netip.Addr) (known, chosen time.Time) {
	a.t.Helper()
	single := netip.PrefixFrom(addr, addr.BitLen())
	pause := unix.NsecToTimespec(int64(pollEvery))
	for deadline := time.Now().Add(timeout); known.IsZero() || chosen.IsZero(); {
		// A map looks up the longest prefix: that of the node's pods is there anyway.
		value, found, err := v.ipcache.lookup(bpf.IPCacheKeyFrom(single))
		require.NoError(a.t, err)
		if known.IsZero() && found && value.Flags&bpf.IPCachePod != 0 {
			known = time.Now()
		}
		pod, _, err := v.pods.lookup(bpf.PodKey{Addr: bpf.AddressFrom(addr)})
		require.NoError(a.t, err)
		_, found, err = v.routes.lookup(bpf.SubjectKey{Subject: pod.Subject})
		require.NoError(a.t, err)
		if chosen.IsZero() && found {
			chosen = time.Now()
		}
		require.True(a.t, time.Now().Before(deadline), "%s does not appear in the maps", addr)
		_ = unix.Nanosleep(&pause, nil) // time.Sleep may round it up to a millisecond
	}
	return known, chosen
}

func percentiles(d []time.Duration) string {
	slices.Sort(d)
	at := func(percent int) time.Duration { return d[(len(d)-1)*percent/100].Round(time.Microsecond) }
	return fmt.Sprintf("p50 %s, p90 %s, p99 %s, max %s", at(50), at(90), at(99), at(100))
}
