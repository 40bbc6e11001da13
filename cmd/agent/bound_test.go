// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/policy/policytest"
	"github.com/sluice-net/sluice/testdata/await"
)

// boundSizes are the sizes of the maps.
var boundSizes = map[string]int{
	"pods": 512, "ipcache": 512, "subjects": 128, "peers": 512, "policy": 4096, "verdicts": 4096,
	"egress": 512, "gateways": 1024, "covered": 512, "nodes": 64, "exits": 16,
}

// What there is room for, in entries: in all maps, in those of prefixes, and for one ruleset.
var (
	everything = roomIn(slices.Collect(maps.Keys(boundSizes))...)
	ofPrefixes = roomIn("ipcache", "peers")
)

const ofRuleset = 256

func roomIn(names ...string) (room int) {
	for _, name := range names {
		room += boundSizes[name]
	}
	return room
}

// The agent's memory has a bound that follows from the sizes of the maps, and from how many
// objects there are: what objects say of each other does not multiply. Each kind of object grows
// until something says that it is refused, and far beyond. All along, the tables that are derived
// and the mirrors have not more than two rows for each entry that there is room for, and a few for
// each object. Another namespace gets its policy then.
func TestMemoryIsBounded(t *testing.T) {
	for _, g := range growths {
		t.Run(g.what, func(t *testing.T) {
			t.Parallel()
			b := newBounded(t)
			n := 64
			for from := 0; n <= g.most; from, n = n, 2*n {
				b.apply(g.grow(from, n)...)
				rows := b.rest(2*g.room + g.each*n + b.before)
				t.Logf("%d of %s: %d rows", n, g.what, rows)
			}
			b.requireRefused(g.refused)
			b.requireOthersEnforced()
		})
	}
}

// growth is a kind of object that grows.
type growth struct {
	what    string
	most    int    // how many there are in the end
	room    int    // the entries that they can take
	each    int    // how many rows each may take beside these
	refused string // matches what says that there are too many
	grow    func(from, to int) []string
}

// bounded is an agent whose objects grow.
type bounded struct {
	*cluster
	before  int             // rows before anything grew
	derived map[string]bool // tables
}

func newBounded(t *testing.T) *bounded {
	flags := []string{
		"--node-name=" + policytest.LocalNode, "--retry-min=20ms", "--retry-max=500ms",
		fmt.Sprint("--max-ruleset-entries=", ofRuleset),
	}
	for name, size := range boundSizes {
		flags = append(flags, fmt.Sprintf("--map-size-%s=%d", name, size))
	}
	b := &bounded{cluster: newCluster(t, flags), derived: map[string]bool{}}
	require.NoError(t, b.api.Sync())
	b.apply(
		boundNode(0, "egress: a"), boundNode(1, "egress: b"), boundNamespace("grows"),
		boundNamespace("other"), boundPod("other", "web", 0, 1<<17+1, "app: web"),
		boundPod("other", "client", 1, 1<<17+2, "app: client"),
		boundPod("grows", "first", 0, 1<<17+3, "app: first"),
	)
	require.NoError(t, b.hive.Start(b.log, t.Context()))
	require.NoError(t, b.quiet(t.Context()))
	for _, e := range b.graph().Edges {
		if e.By == "derive" || strings.HasPrefix(e.To, "map-") {
			b.derived[e.To] = true
		}
	}
	require.Greater(t, len(b.derived), 30)
	b.before = b.rows(b.oracle.DB.ReadTxn(), true)
	return b
}

func (b *bounded) apply(manifests ...string) {
	require.NoError(b.t, b.api.Apply([]byte(strings.Join(manifests, "\n---\n"))))
}

// rows counts the rows of derived tables, with or without mirrors.
func (b *bounded) rows(txn statedb.ReadTxn, mirrors bool) (n int) {
	for _, table := range b.oracle.DB.GetTables(txn) {
		if b.derived[table.Name()] && (mirrors || !strings.HasPrefix(table.Name(), "map-")) {
			n += table.NumObjects(txn)
		}
	}
	return n
}

// rest waits until derived tables neither grow nor shrink, and requires meanwhile that they have
// not too many rows. Where maps are full, nothing else comes to rest.
func (b *bounded) rest(most int) (rows int) {
	last, same := 0, 0
	await.True(b.t, func() bool {
		txn := b.oracle.DB.ReadTxn()
		if rows = b.rows(txn, true); rows > most {
			require.Fail(b.t, "too many rows", "%d, more than %d: %s", rows, most, b.counts(txn))
		}
		now := b.rows(txn, false)
		if same++; now != last || b.pending() != "" {
			last, same = now, 0
		}
		time.Sleep(settledPause)
		return same > settled
	})
	return rows
}

// counts says how many rows the tables have.
func (b *bounded) counts(txn statedb.ReadTxn) (text string) {
	for _, table := range b.oracle.DB.GetTables(txn) {
		text += fmt.Sprintf(" %s=%d", table.Name(), table.NumObjects(txn))
	}
	return text
}

// requireRefused waits until a status or the health says what is refused.
func (b *bounded) requireRefused(pattern string) {
	is := regexp.MustCompile(pattern)
	await.True(b.t, func() bool {
		txn := b.oracle.DB.ReadTxn()
		for _, name := range []string{"health", "network-policy-status", "egress-policy-status"} {
			for row := range (statedb.AnyTable{Meta: b.table(name)}).All(txn) {
				text, err := json.Marshal(row)
				require.NoError(b.t, err)
				if is.Match(text) {
					return true
				}
			}
		}
		return false
	}, "nothing says %s", pattern)
}

// requireOthersEnforced applies a policy of another namespace, and waits until it is in force.
func (b *bounded) requireOthersEnforced() {
	b.apply(`{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy,
metadata: {name: small, namespace: other}, spec: {podSelector: {matchLabels: {app: web}},
ingress: [{from: [{podSelector: {matchLabels: {app: client}}}], ports: [{port: 80}]}]}}`)
	status := b.table("network-policy-status")
	await.True(b.t, func() bool {
		txn := b.oracle.DB.ReadTxn()
		for row := range (statedb.AnyTable{Meta: status}).All(txn) {
			s := row.(*tables.NetworkPolicyStatus)
			if s.Policy.Name.Name == "small" && s.State == tables.PolicyInForce {
				return true
			}
		}
		return false
	}, "the policy of another namespace is not in force")
	web, client, first := boundAddr(1<<17+1), boundAddr(1<<17+2), boundAddr(1<<17+3)
	packets := append(ingressOf(web, client, first), ingressOf(web, client)...)
	packets[2].Port = 81
	b.memory.Read(func(r bpf.Reader) {
		for i, want := range []string{allowed, denied, denied} {
			got, _ := policyInKernel(r, packets[i], true)
			require.Equal(b.t, want, got, packets[i].String())
		}
	})
}
