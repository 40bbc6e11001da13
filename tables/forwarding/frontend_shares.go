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

	of, waiting map[string]int // entries, and refused rows, by namespace

	refused map[string][]tables.FrontendID // those before the transaction, by namespace
}

// maxRefused is how many refused rows of a namespace are kept, to be admitted when there is room.
// What is refused beyond them is tried again when its service or pod changes.
const maxRefused = 1024

// shares counts the entries.
func (f *frontendParams) shares(out statedb.WriteTxn) *frontendShares {
	s := &frontendShares{
		size: int(f.Maps.MapSizeServices),
		of:   map[string]int{}, waiting: map[string]int{},
		refused: map[string][]tables.FrontendID{},
	}
	for row := range f.Frontends.All(out) {
		if s.count(row, 1); row.Refused {
			s.refused[row.Share] = append(s.refused[row.Share], row.FrontendID)
		}
	}
	return s
}

func (s *frontendShares) count(row *tables.Frontend, n int) {
	switch {
	case row == nil:
	case row.Refused:
		s.waiting[row.Share] += n
	default:
		s.total += n
		s.of[row.Share] += n
	}
}

func (s *frontendShares) hasRoom(namespace string) bool {
	return verdicts.Fits(s.size, s.total, s.of[namespace], 1)
}

// replace counts a row in the place of another one, and refuses a new one if there is no room. Ports of
// all nodes are never refused: without its entry such a port would be judged as the node only, and
// there are no more than the API server's range has. It reports whether the row is kept.
func (s *frontendShares) replace(old, row *tables.Frontend) (kept bool) {
	s.count(old, -1)
	if row != nil {
		row.Refused = !s.share(old, row) && !row.Addr.IsUnspecified()
	}
	if old != nil && !old.Refused && (row == nil || row.Refused) {
		s.freed++
	}
	kept = row == nil || !row.Refused || s.waiting[row.Share] < maxRefused
	if kept {
		s.count(row, 1)
	}
	return kept
}

// share sets in whose share a row counts, and reports whether there is room. It stays where it is,
// and else any namespace of its origins will do: one that has used up its share takes nothing from
// others by naming their addresses.
func (s *frontendShares) share(old, row *tables.Frontend) (has bool) {
	for i, origin := range row.Origins {
		namespace := namespaceOf(origin)
		if i == 0 {
			row.Share = namespace
		}
		stays := old != nil && !old.Refused && old.Share == namespace
		if stays || !has && s.hasRoom(namespace) {
			row.Share, has = namespace, true
		}
		if stays {
			break
		}
	}
	return has
}

// retry marks refused rows for which there is room now.
func (s *frontendShares) retry(mark func(frontendKey)) {
	for namespace, refused := range s.refused {
		if !s.hasRoom(namespace) {
			continue
		}
		for _, id := range refused[:min(len(refused), s.freed)] {
			mark(frontendKey{FrontendID: id})
		}
	}
}

// namespaceOf returns the namespace of an origin.
func namespaceOf(origin string) string {
	_, name, _ := strings.Cut(origin, " ")
	namespace, _, _ := strings.Cut(name, "/")
	return namespace
}

// maxFrontends is how many frontends a transaction computes: a service or a pod may have many.
const maxFrontends = 4000

// compute brings rows up to date.
func (f *frontendParams) compute(
	in statedb.ReadTxn, out statedb.WriteTxn, keys []frontendKey, mark func(frontendKey),
) error {
	shares, cache := f.shares(out), newFrontendCache()
	computed := 0
	put := func(id tables.FrontendID) (kept bool, err error) {
		computed++
		return f.put(out, shares, id, f.row(in, cache, id))
	}
	for i, key := range keys {
		if computed >= maxFrontends {
			for _, k := range keys[i:] {
				mark(k)
			}
			break
		}
		var err error
		if key.of.kind == "" {
			_, err = put(key.FrontendID)
		} else {
			err = f.putAll(in, out, cache, key.of, put)
		}
		if err != nil {
			return err
		}
	}
	shares.retry(mark)
	return nil
}

// putAll brings the rows up to date that a service or a pod has or may have, up to the first one
// that there is no room for: what comes after it would be refused, too.
func (f *frontendParams) putAll(
	in statedb.ReadTxn, out statedb.WriteTxn, cache *frontendCache, of frontendOrigin,
	put func(tables.FrontendID) (kept bool, err error),
) error {
	has := map[tables.FrontendID]bool{}
	for _, row := range statedb.Collect(f.Frontends.List(out, tables.FrontendsByOrigin(of.String()))) {
		has[row.FrontendID] = true
		if _, err := put(row.FrontendID); err != nil {
			return err
		}
	}
	for id := range f.idsOf(in, cache, of) {
		if has[id] {
			continue
		}
		if kept, err := put(id); err != nil || !kept {
			return err
		}
	}
	return nil
}

// put makes one row the wanted one, nil if none is, and reports whether it is as wanted: not if it
// would be refused and its namespace has many such.
func (f *frontendParams) put(
	out statedb.WriteTxn, shares *frontendShares, id tables.FrontendID, row *tables.Frontend,
) (kept bool, err error) {
	old, _, _ := f.Frontends.Get(out, tables.FrontendByID(id))
	var wanted []*tables.Frontend
	if kept = shares.replace(old, row); kept && row != nil {
		wanted = append(wanted, row)
	}
	existing := f.Frontends.List(out, tables.FrontendByID(id))
	return kept, derive.Replace(out, f.Frontends, (*tables.Frontend).Equal, existing, wanted...)
}
