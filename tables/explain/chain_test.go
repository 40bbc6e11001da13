// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"strings"
	"testing"

	"github.com/cilium/statedb/reconciler"
	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/tablestest"
)

// What the kernel does not have yet is said of the party that it concerns, with what it
// waits for.
func TestWaits(t *testing.T) {
	w := newWorld(t, inMemory(t))
	text := "waiting for ruleset 5: selector 3: members"
	status := reconciler.StatusPending()
	status.Error = &text
	tablestest.Insert(w.t, w.DB, w.Subjects, &tables.Subject{
		Life: tables.Life{Number: subjectWeb}, Ruleset: rulesetWeb,
		Reconciled: tables.Reconciled{Status: status},
	})
	tablestest.Insert(w.t, w.DB, w.Members, &tables.Member{
		Life: tables.Life{Number: memberOf(classClient)}, Digest: bpf.Digest{classClient},
		Class:     classClient,
		MemberDef: tables.MemberDef{Scope: tables.ScopePods}, Reconciled: tables.Pending(),
	})
	answer, err := w.Policy("shop/client", "shop/web", "80", "")
	require.NoError(t, err)
	require.Equal(t, []string{"member 112: not written yet"}, answer.From.Waits)
	require.Equal(t, []string{"subject 1: " + text}, answer.To.Waits)
	var page strings.Builder
	require.NoError(t, answer.Print(&page))
	require.Contains(t, page.String(),
		"\n            subject 1, ruleset 5: CiliumNetworkPolicy/shop/no-db, NetworkPolicy/shop/web\n")
	require.Contains(t, page.String(),
		"\n            member 112 (pods), class 12: no selector\n"+
			"            waits: member 112: not written yet\n")
	require.Contains(t, page.String(), "\n            waits: subject 1: "+text+"\n")
}

// That selectors are left out of the class of a peer is said, and why.
func TestImpreciseClasses(t *testing.T) {
	for precision, want := range map[tables.Precision]string{
		tables.Coarse:  "class 12: no selector\n            COARSE: its namespace has no room",
		tables.Refused: "class 12: refused, its namespace has no room",
	} {
		w := newWorld(t, inMemory(t))
		tablestest.Insert(w.t, w.DB, w.Classes, &tables.Class{
			Life: tables.Life{Number: classClient}, Digest: bpf.Digest{classClient}, Precision: precision,
		})
		answer, err := w.Policy("shop/client", "shop/web", "80", "")
		require.NoError(t, err)
		var page strings.Builder
		require.NoError(t, answer.Print(&page))
		require.Contains(t, page.String(), want)
	}
}
