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

// egressVoters returns the set of an object. One that is wrong in part is none: who takes part is
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

// parseEgressVoters parses a set, with its nodes in the order of their names.
func parseEgressVoters(text string) (*tables.EgressVoters, error) {
	set := tables.EgressVoterSet{}
	d := json.NewDecoder(bytes.NewReader([]byte(text)))
	d.DisallowUnknownFields()
	if err := d.Decode(&set); err != nil {
		return nil, fmt.Errorf("parse JSON: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("something follows the JSON")
	}
	generation := uint32(set.Generation)
	switch {
	case set.Generation <= 0 || int64(generation) != set.Generation:
		return nil, fmt.Errorf("generation: %d is no generation: want 1 to 4294967295", set.Generation)
	case len(set.Voters) == 0:
		return nil, errors.New("voters: required")
	case len(set.Voters) > tables.MaxEgressVoters:
		return nil, fmt.Errorf("voters: %d are more than %d", len(set.Voters), tables.MaxEgressVoters)
	}
	row := &tables.EgressVoters{Generation: generation}
	nodes, addrs := map[string]bool{}, map[netip.Addr]bool{}
	for i, v := range set.Voters {
		field := indexed("voters", i)
		addr, err := parseAddr(v.Addr)
		if err != nil {
			return nil, fmt.Errorf("%s.addr: %w", field, err)
		}
		if err := checkName(field+".node", v.Node); err != nil {
			return nil, err
		}
		if nodes[v.Node] || addrs[addr] {
			return nil, fmt.Errorf("%s: %s or %s is that of a voter before",
				field, strconv.Quote(v.Node), addr)
		}
		nodes[v.Node], addrs[addr] = true, true
		row.Voters = append(row.Voters, tables.EgressVoter{Node: v.Node, Addr: addr})
	}
	slices.SortFunc(row.Voters,
		func(a, b tables.EgressVoter) int { return strings.Compare(a.Node, b.Node) })
	return row, nil
}
