// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/cilium/statedb"
	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/tables"
)

// votersObject returns a ConfigMap of the agents' namespace with a text under the key of voters.
func votersObject(t *testing.T, name, text string) []byte {
	object, err := json.Marshal(map[string]any{
		"metadata": map[string]any{
			"name": name, "namespace": "agents", "uid": "uid-1", "resourceVersion": "7",
		},
		"data": map[string]any{"voters": text, "other": "text"},
	})
	require.NoError(t, err)
	return object
}

func decodeVoters(t *testing.T, data []byte) *tables.EgressVoters {
	o, err := EgressVotersKind("agents").Decode(data)
	require.NoError(t, err)
	require.NoError(t, o.Err)
	require.Len(t, o.rows, 1)
	return o.rows[0].(*tables.EgressVoters)
}

func TestEgressVoters(t *testing.T) {
	data := votersObject(t, tables.EgressVotersName, `{
		"generation": 4294967295, "since": "2026-11-27T08:00:00Z", "sets": [
		{"number": 7, "voters": [
			{"node": "node-2", "addr": "fd00::2"}, {"node": "node-1", "addr": "10.0.0.1"}]},
		{"number": 8, "voters": [{"node": "node-1", "addr": "10.0.0.1"}]}]}`)
	first := tables.EgressVoter{Node: "node-1", Addr: netip.MustParseAddr("10.0.0.1")}
	second := tables.EgressVoter{Node: "node-2", Addr: netip.MustParseAddr("fd00::2")}
	want := &tables.EgressVoters{
		Generation: 1<<32 - 1, Since: time.Date(2026, 11, 27, 8, 0, 0, 0, time.UTC),
		Sets: []tables.VoterSet{
			{Number: 7, Voters: []tables.EgressVoter{first, second}},
			{Number: 8, Voters: []tables.EgressVoter{first}},
		},
	}
	require.Equal(t, want, decodeVoters(t, data))

	o, err := operatorVotersKind("agents").Decode(data)
	require.NoError(t, err)
	want.Object = &tables.ObjectVersion{UID: "uid-1", ResourceVersion: "7"}
	require.Equal(t, []any{want}, o.rows)
}

// The operator has the times of a node, agents do not.
func TestNodeTimes(t *testing.T) {
	data := []byte(`{"metadata": {"name": "a", "creationTimestamp": "2025-03-01T12:00:00+02:00"},
		"status": {"conditions": [
			{"type": "MemoryPressure", "status": "True", "lastTransitionTime": "2025-03-03T10:00:00Z"},
			{"type": "Ready", "status": "False", "lastTransitionTime": "2025-03-02T10:00:00Z"}]}}`)
	o, err := nodeKind().Decode(data)
	require.NoError(t, err)
	require.Equal(t, []any{&tables.Node{Name: "a"}}, o.rows)
	o, err = operatorNodeKind().Decode(data)
	require.NoError(t, err)
	require.Equal(t, []any{&tables.Node{Name: "a", Times: &tables.NodeTimes{
		Created: time.Date(2025, 3, 1, 10, 0, 0, 0, time.UTC),
		Ready:   time.Date(2025, 3, 2, 10, 0, 0, 0, time.UTC),
	}}}, o.rows)
}

// A set that is wrong in part is none, and says why.
func TestWrongEgressVoters(t *testing.T) {
	const one = `{"node": "node-1", "addr": "10.0.0.1"}`
	of := func(number int, voters string) string {
		return fmt.Sprintf(`{"number": %d, "voters": [%s]}`, number, voters)
	}
	sets := func(sets string) string { return `{"generation": 1, "sets": [` + sets + `]}` }
	set := func(voters string) string { return sets(of(1, voters)) }
	six := one
	for i := range 5 {
		six += fmt.Sprintf(`, {"node": "n%d", "addr": "10.0.1.%d"}`, i, i+1)
	}
	for text, reason := range map[string]string{
		` `:                              "parse JSON: EOF",
		`[]`:                             "parse JSON: json: cannot unmarshal array into Go value",
		`{"generation": "1"}`:            "parse JSON: json: cannot unmarshal string",
		`{"generation": 1.5}`:            "parse JSON: json: cannot unmarshal number 1.5",
		`{"generation": 1, "nodes": []}`: `parse JSON: json: unknown field "nodes"`,
		set(one) + `{}`:                  "something follows the JSON",
		`{"sets": [` + of(1, one) + `]}`: "generation: 0: want 1 to 4294967295",
		`{"generation": -1}`:             "generation: -1: want 1",
		`{"generation": 4294967296}`:     "generation: 4294967296: want 1",
		`{"generation": 1}`:              "sets: required",
		sets(``):                         "sets: required",
		sets(of(1, one) + `, ` + of(2, one) + `, ` + of(3, one)): "sets: 3 are more than 2",
		sets(of(1, one) + `, ` + of(1, one)):                     "sets[1].number: 1 does not follow 1",
		sets(of(1, one) + `, ` + of(3, one)):                     "sets[1].number: 3 does not follow 1",
		sets(of(1, one) + `, ` + of(2, one)): "sets[1].voters: 0 nodes differ from the set before: " +
			"want 1",
		sets(of(1, one) + `, ` + of(2, `{"node": "node-1", "addr": "10.0.0.2"}`)): "sets[1].voters: 2 ",
		sets(of(0, one)):            "sets[0].number: 0: want 1",
		set(``):                     "sets[0].voters: required",
		set(six):                    "sets[0].voters: 6 are more than 5",
		set(`{"addr": "10.0.0.1"}`): "sets[0].voters[0].node: required",
		set(`{"node": "a/b", "addr": "10.0.0.1"}`): `sets[0].voters[0].node: "a/b" is no name`,
		set(`{"node": "node-1"}`):                  "sets[0].voters[0].addr: is empty",
		set(`{"node": "a", "addr": "10.0.0.256"}`): `sets[0].voters[0].addr: "10.0.0.256": `,
		set(`{"node": "a", "addr": "0.0.0.0"}`): `sets[0].voters[0].addr: "0.0.0.0": ` +
			`is not the address of a host`,
		set(one + `, {"node": "node-1", "addr": "10.0.0.2"}`): `sets[0].voters[1]: "node-1" or ` +
			`10.0.0.2 is that of a voter before`,
		set(one + `, {"node": "node-2", "addr": "10.0.0.1"}`): `sets[0].voters[1]: "node-2" or ` +
			`10.0.0.1 is that of a voter before`,
	} {
		row := decodeVoters(t, votersObject(t, tables.EgressVotersName, text))
		require.Contains(t, row.Error, "data.voters: "+reason, text)
		require.Empty(t, row.Sets, text)
		require.Zero(t, row.Generation, text)
	}
	for object, reason := range map[string]string{
		`{}`:                       "data.voters: required",
		`{"data": {"other": "a"}}`: "data.voters: required",
		`{"data": {"voters": 3}}`:  "data.voters: must be a text, is a number",
		`{"data": ["voters"]}`:     "data: must be an object, is a list",
	} {
		var o map[string]any
		require.NoError(t, json.Unmarshal([]byte(object), &o))
		o["metadata"] = map[string]any{"name": tables.EgressVotersName, "namespace": "agents"}
		data, err := json.Marshal(o)
		require.NoError(t, err)
		require.Equal(t, &tables.EgressVoters{Error: reason}, decodeVoters(t, data))
	}
}

// Other ConfigMaps are no sets, and do away with none.
func TestOtherConfigMaps(t *testing.T) {
	db := statedb.New()
	all, err := NewTables(db, tables.LocalNode{})
	require.NoError(t, err)
	k := EgressVotersKind("agents")
	store := k.Store(&all)
	wtxn := db.WriteTxn(all.EgressVoters)
	defer wtxn.Abort()
	put := func(data []byte) *Object {
		o, err := k.Decode(data)
		require.NoError(t, err)
		require.NoError(t, store.Put(wtxn, o))
		return o
	}
	set := `{"generation": 1, "sets": [{"number": 1, "voters": [
		{"node": "node-1", "addr": "10.0.0.1"}]}]}`
	own := put(votersObject(t, tables.EgressVotersName, set))
	other := put(votersObject(t, "other", set))
	require.Equal(t, 1, store.Rows())
	require.NoError(t, store.Delete(wtxn, other.Name))
	require.Equal(t, 1, all.EgressVoters.NumObjects(wtxn))
	require.NoError(t, store.Delete(wtxn, own.Name))
	require.Zero(t, all.EgressVoters.NumObjects(wtxn))
}
