// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// BenchmarkPolicyOfManyPeers has one policy come, lose a peer and go that allows as
// many peers as there are classes, such as prefixes. The CPU time for a peer should
// not depend on how many there are.
func BenchmarkPolicyOfManyPeers(b *testing.B) {
	for _, n := range []int{1000, 4000, 10000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				a, labels := manyPeers(b, n)
				b.StartTimer()
				for _, step := range []struct {
					name string
					do   func()
				}{
					{"comes", func() { a.put(ingressPolicy("many", "all", allow(labels...))) }},
					{"programmed", a.program},
					{"loses", func() { a.put(ingressPolicy("many", "all", allow(labels[1:]...))) }},
					{"lost", a.program},
					{"goes", func() { a.remove(ingressPolicy("many", "all")) }},
					{"gone", a.program},
				} {
					cpu := cpuTime(b)
					step.do()
					b.ReportMetric(float64((cpuTime(b)-cpu).Microseconds())/float64(n), step.name+"-µs/peer")
				}
				require.Empty(b, a.rules())
			}
		})
	}
}

// manyPeers is an agent with one class of subjects and some of peers, each with a
// label.
func manyPeers(t testing.TB, n int) (a *agent, labels []string) {
	a = newAgent(t, nil)
	rows := append(evaluated(bpf.RoleSubject, subjectOf("all")), subjectRow(1, "all"))
	for i := range n {
		label := fmt.Sprint("p", i)
		labels = append(labels, label)
		rows = append(append(rows, evaluated(bpf.RolePeer, peerOf(label))...), peerRow(uint32(i+1), label))
	}
	a.put(rows...)
	a.register()
	return a, labels
}

func cpuTime(t testing.TB) time.Duration {
	var u syscall.Rusage
	require.NoError(t, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// The work for a policy of many peers is that of the pairs of each, done once.
func TestPolicyOfManyPeers(t *testing.T) {
	const n = 500
	a, labels := manyPeers(t, n)
	before := map[string]int{}
	for _, table := range []string{"policy-rules", "policy-entries", "policy-readiness"} {
		before[table] = a.counts(table).Keys
	}
	a.put(ingressPolicy("many", "all", allow(labels...)))
	require.Equal(t, 1, a.counts("policy-rules").Keys-before["policy-rules"])
	require.Equal(t, n+1, a.counts("policy-entries").Keys-before["policy-entries"])
	a.program()
	require.Equal(t, tables.PolicyInForce, a.status("many").State)
	// For the rules, for the entries, and for what the kernel has of them.
	require.LessOrEqual(t, a.counts("policy-readiness").Keys-before["policy-readiness"], 3*(n+1))
}
