// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

// configMap is the one ConfigMap that is read.
type configMap struct {
	object
	Data struct {
		Voters string `json:"voters"` // [tables.EgressVotersKey]
	} `json:"data" protobuf:"bytes,2,map"`
}

// EgressVotersKind returns the kind of the ConfigMap, of which no other one is read, with
// --egress-ips.
func EgressVotersKind(namespace tables.AgentNamespace) *Kind {
	only := tables.Name{Namespace: string(namespace), Name: tables.EgressVotersName}
	return &Kind{
		Version: "v1", Kind: "ConfigMap", Resource: "configmaps", Namespaced: true,
		Protobuf: true, Only: only,
		decoder: decoderFor(
			func(o *configMap, name tables.Name, errs *fieldErrors) []*tables.EgressVoters {
				if name != only {
					return nil
				}
				return one(egressVoters(o, errs))
			}),
		open: func(t *Tables) *Store {
			return storeOf(t.EgressVoters,
				func(name tables.Name) statedb.Query[*tables.EgressVoters] {
					if name != only {
						return tables.EgressVotersByIndex(1) // no row
					}
					return tables.EgressVotersByIndex(0)
				})
		},
	}
}

// operatorVotersKind is [EgressVotersKind] for the operator, which writes the object.
func operatorVotersKind(namespace tables.AgentNamespace) *Kind {
	k := EgressVotersKind(namespace)
	k.decoder = decoderFor(
		func(o *configMap, name tables.Name, errs *fieldErrors) []*tables.EgressVoters {
			if name != k.Only {
				return nil
			}
			row := egressVoters(o, errs)
			row.Object = &tables.ObjectVersion{
				UID: o.Metadata.UID, ResourceVersion: o.Metadata.ResourceVersion,
			}
			return one(row)
		})
	return k
}

// egressVoters returns the sets of an object. One that is wrong in part is none: who takes part is
// not known.
func egressVoters(o *configMap, errs *fieldErrors) *tables.EgressVoters {
	if len(*errs) == 0 && o.Data.Voters == "" {
		errs.add("data."+tables.EgressVotersKey, "required")
	}
	if len(*errs) > 0 {
		return &tables.EgressVoters{Error: errs.String()}
	}
	row, err := parseEgressVoters(o.Data.Voters)
	if err != nil {
		return &tables.EgressVoters{Error: "data." + tables.EgressVotersKey + ": " + err.Error()}
	}
	return row
}

// parseEgressVoters parses sets, with their nodes in the order of their names.
func parseEgressVoters(text string) (*tables.EgressVoters, error) {
	var object tables.EgressVotersInObject
	d := json.NewDecoder(bytes.NewReader([]byte(text)))
	d.DisallowUnknownFields()
	if err := d.Decode(&object); err != nil {
		return nil, fmt.Errorf("parse JSON: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("something follows the JSON")
	}
	generation, err := positive("generation", object.Generation)
	switch {
	case err != nil:
		return nil, err
	case len(object.Sets) == 0:
		return nil, errors.New("sets: required")
	case len(object.Sets) > bpf.VoterSets:
		return nil, fmt.Errorf("sets: %d are more than %d", len(object.Sets), bpf.VoterSets)
	}
	row := &tables.EgressVoters{Generation: generation, Since: object.Since}
	for i, o := range object.Sets {
		set, err := parseVoterSet(indexed("sets", i), o)
		if err != nil {
			return nil, err
		}
		if i > 0 {
			if err := checkNext(row.Sets[i-1], set); err != nil {
				return nil, fmt.Errorf("sets[%d].%w", i, err)
			}
		}
		row.Sets = append(row.Sets, set)
	}
	return row, nil
}

// checkNext checks that a set may be in use beside the one before it: any majority of one has a
// node in common with any majority of the other, as they differ by one node.
func checkNext(before, set tables.VoterSet) error {
	if set.Number != before.Number+1 {
		return fmt.Errorf("number: %d does not follow %d", set.Number, before.Number)
	}
	common := 0
	for _, v := range set.Voters {
		if slices.Contains(before.Voters, v) {
			common++
		}
	}
	if n := len(before.Voters) + len(set.Voters) - 2*common; n != 1 {
		return fmt.Errorf("voters: %d nodes differ from the set before: want 1", n)
	}
	return nil
}

func parseVoterSet(field string, o tables.VoterSetInObject) (set tables.VoterSet, err error) {
	if set.Number, err = positive(field+".number", o.Number); err != nil {
		return set, err
	}
	field += ".voters"
	switch {
	case len(o.Voters) == 0:
		return set, fmt.Errorf("%s: required", field)
	case len(o.Voters) > tables.MaxEgressVoters:
		return set, fmt.Errorf("%s: %d are more than %d",
			field, len(o.Voters), tables.MaxEgressVoters)
	}
	nodes, addrs := map[string]bool{}, map[netip.Addr]bool{}
	for i, v := range o.Voters {
		field := indexed(field, i)
		addr, err := parseAddr(v.Addr)
		if err != nil {
			return set, fmt.Errorf("%s.addr: %w", field, err)
		}
		if err := checkName(field+".node", v.Node); err != nil {
			return set, err
		}
		if nodes[v.Node] || addrs[addr] {
			return set, fmt.Errorf("%s: %s or %s is that of a voter before",
				field, strconv.Quote(v.Node), addr)
		}
		nodes[v.Node], addrs[addr] = true, true
		set.Voters = append(set.Voters, tables.EgressVoter{Node: v.Node, Addr: addr})
	}
	slices.SortFunc(set.Voters,
		func(a, b tables.EgressVoter) int { return strings.Compare(a.Node, b.Node) })
	return set, nil
}

// positive checks that a number is one of 32 bits, and not 0.
func positive(field string, n int64) (uint32, error) {
	if n <= 0 || int64(uint32(n)) != n {
		return 0, fmt.Errorf("%s: %d: want 1 to 4294967295", field, n)
	}
	return uint32(n), nil
}
