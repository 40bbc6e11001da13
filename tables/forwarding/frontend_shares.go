// SPDX-License-Identifier: Apache-2.0

package forwarding

import (
	"strings"

	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/derive"
	"github.com/sluice-net/sluice/tables/verdicts"
)

// frontendShares are how many entries of sluice_services there are, and which are refused. The
// share of a namespace is as in other maps: see [verdicts.Fits].
type frontendShares struct {
	size, total, freed int

	of      map[string]int                 // by namespace
	refused map[string][]tables.FrontendID // by namespace
}

// shares counts the entries, nil if one namespace may have all of them.
func (f *frontendParams) shares(out statedb.WriteTxn, more int) *frontendShares {
	s := &frontendShares{
		size: int(f.Maps.MapSizeServices),
		of:   map[string]int{}, refused: map[string][]tables.FrontendID{},
	}
	if f.Frontends.NumObjects(out)+more < s.size/4 {
		return nil
	}
	for row := range f.Frontends.All(out) {
		if s.count(row, 1); row.Refused {
			of := namespaceOf(row)
			s.refused[of] = append(s.refused[of], row.FrontendID)
		}
	}
	return s
}

func (s *frontendShares) count(row *tables.Frontend, n int) {
	if row == nil || row.Refused {
		return
	}
	s.total += n
	s.of[namespaceOf(row)] += n
}

func (s *frontendShares) hasRoom(namespace string) bool {
	return verdicts.Fits(s.size, s.total, s.of[namespace], 1)
}

// replace counts a row in the place of another one, and refuses a new one if there is no room. Ports of
// all nodes are never refused: without its entry such a port would be judged as the node only, and
// there are no more than the API server's range has.
func (s *frontendShares) replace(old, row *tables.Frontend) {
	s.count(old, -1)
	if row != nil && !row.Addr.IsUnspecified() {
		has := old != nil && !old.Refused && namespaceOf(old) == namespaceOf(row)
		row.Refused = !has && !s.hasRoom(namespaceOf(row))
	}
	if s.count(row, 1); old != nil && !old.Refused && (row == nil || row.Refused) {
		s.freed++
	}
}

// retry marks refused rows for which there is room now.
func (s *frontendShares) retry(mark func(tables.FrontendID)) {
	for namespace, refused := range s.refused {
		if !s.hasRoom(namespace) {
			continue
		}
		for _, id := range refused[:min(len(refused), s.freed)] {
			mark(id)
		}
	}
}

// namespaceOf returns the namespace in whose share a row counts: of the first service or pod.
func namespaceOf(row *tables.Frontend) string {
	_, name, _ := strings.Cut(row.Origins[0], " ")
	namespace, _, _ := strings.Cut(name, "/")
	return namespace
}

// compute brings rows up to date.
func (f *frontendParams) compute(
	in statedb.ReadTxn, out statedb.WriteTxn, keys []tables.FrontendID, mark func(tables.FrontendID),
) error {
	shares := f.shares(out, len(keys))
	each := derive.Each(f.Frontends, tables.FrontendByID, (*tables.Frontend).Equal,
		func(in statedb.ReadTxn, id tables.FrontendID) *tables.Frontend {
			row := f.row(in, id)
			if shares != nil {
				old, _, _ := f.Frontends.Get(out, tables.FrontendByID(id))
				shares.replace(old, row)
			}
			return row
		})
	if err := each(in, out, keys, mark); err != nil || shares == nil {
		return err
	}
	shares.retry(mark)
	return nil
}
