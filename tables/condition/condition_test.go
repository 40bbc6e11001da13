// SPDX-License-Identifier: Apache-2.0

package condition

import (
	"errors"
	"testing"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb/reconciler"
	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/tables"
)

func TestOf(t *testing.T) {
	mistake := []tables.FieldError{{Field: "spec", Reason: "required"}}
	for name, tc := range map[string]struct {
		row  any
		want Condition
	}{
		"status done":            {&tables.EgressRule{Reconciled: tables.Done()}, Fine},
		"status refreshing":      {&tables.EgressRule{Reconciled: tables.Reconciled{Status: reconciler.StatusRefreshing()}}, Fine},
		"status pending":         {&tables.EgressRule{Reconciled: tables.Pending()}, Pending},
		"status error":           {&tables.PolicyEntry{Reconciled: tables.Reconciled{Status: reconciler.StatusError(errors.New("no space"))}}, Error},
		"egress policy":          {&tables.EgressPolicy{Name: "a"}, Fine},
		"mistake in object":      {&tables.EgressPolicy{Errors: mistake}, Error},
		"not programmed":         {&tables.EgressPolicyStatus{Rules: 2, Programmed: 1}, Pending},
		"programmed":             {&tables.EgressPolicyStatus{Rules: 2, Programmed: 2}, Fine},
		"refused":                {&tables.EgressPolicyStatus{Rules: 2, Programmed: 1, Failed: 1}, Error},
		"drops packets":          {&tables.EgressPolicyStatus{Rules: 2, Programmed: 2, Drops: "no node matches"}, Error},
		"in force":               {&tables.NetworkPolicyStatus{State: tables.PolicyInForce}, Fine},
		"no pod here":            {&tables.NetworkPolicyStatus{State: tables.PolicyNotHere}, Fine},
		"coming into force":      {&tables.NetworkPolicyStatus{State: tables.PolicyPending}, Pending},
		"not supported":          {&tables.NetworkPolicyStatus{State: tables.PolicyUnsupported}, Error},
		"part not supported":     {&tables.NetworkPolicy{Unsupported: mistake}, Error},
		"map":                    {&tables.BPFMap{Entries: 3}, Fine},
		"map with failures":      {&tables.BPFMap{Failed: 1, Waiting: 1}, Error},
		"map that waits":         {&tables.BPFMap{Waiting: 1}, Pending},
		"healthy":                {&tables.Health{Level: cell.StatusOK}, Fine},
		"degraded":               {&tables.Health{Level: cell.StatusDegraded}, Error},
		"node":                   {&tables.Node{Name: "node-1", Ready: true}, Fine},
		"node that is not ready": {&tables.Node{Name: "node-1"}, Error},
		"broken source":          {&tables.ObjectSource{Error: "refused"}, Error},
		"more than is wanted":    {&tables.EgressPolicyStatus{Rules: 2, Programmed: 2, Pending: "pods have yet to move"}, Pending},
		"too large":              {&tables.NetworkPolicyStatus{State: tables.PolicyTooLarge}, Error},
		"embedded status":        {&tables.EgressGateway{Reconciled: tables.Pending()}, Pending},
		"entry":                  {&tables.EgressMirror{Present: true, Desired: true}, Fine},
		"entry to be removed":    {&tables.EgressMirror{Present: true}, Pending},
		"cannot be removed":      {&tables.EgressMirror{Present: true, Error: "refused"}, Error},
		"says nothing":           {&tables.Selector{}, Fine},
		"no struct":              {"row", Fine},
	} {
		require.Equal(t, tc.want, Of(tc.row), name)
	}
}

func TestCounts(t *testing.T) {
	var c Counts
	for _, condition := range []Condition{Fine, Pending, Error, Error} {
		c.Add(condition)
	}
	require.Equal(t, Counts{Pending: 1, Errors: 2}, c)
}
