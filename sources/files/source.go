// SPDX-License-Identifier: Apache-2.0

package files

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"slices"

	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/sources/objects"
	"github.com/sluice-net/sluice/tables"
)

// source keeps the tables what the manifests say.
type source struct {
	db      *statedb.DB
	log     *slog.Logger
	sources statedb.RWTable[*tables.ObjectSource]

	fsys fs.FS
	dir  string // of fsys, empty if it cannot change

	kinds       map[string]*objects.Kind // by kindKey
	stores      map[*objects.Kind]*objects.Store
	initialized []func(statedb.WriteTxn)

	files  map[string]*file
	stored map[id]*objects.Object // what the tables have
}

func newSource(p params, fsys fs.FS, dir string) *source {
	s := &source{
		db: p.DB, log: p.Log, sources: p.Tables.Sources,
		fsys: fsys, dir: dir,
		kinds: map[string]*objects.Kind{}, stores: map[*objects.Kind]*objects.Store{},
		files: map[string]*file{}, stored: map[id]*objects.Object{},
	}
	for _, k := range p.Reads {
		store := k.Store(&p.Tables)
		s.kinds[kindKey(k.APIVersion(), k.Kind)], s.stores[k] = k, store
		wtxn := p.DB.WriteTxn(store.Table)
		s.initialized = append(s.initialized, store.Table.RegisterInitializer(wtxn, "manifests-of-"+k.Resource))
		wtxn.Commit()
	}
	return s
}

// apply takes in a tree: one transaction for all that changed. The error says
// which files are broken, their former objects being kept.
func (s *source) apply(t *tree) (broken, err error) {
	s.update(t)
	wanted, notes := s.wanted()

	wtxn := s.db.WriteTxn(s.locked()...)
	defer wtxn.Abort()
	if err := s.store(wtxn, wanted); err != nil {
		return nil, err
	}
	broken, err = s.tell(wtxn, t, notes)
	if err != nil {
		return nil, err
	}
	for _, done := range s.initialized {
		done(wtxn)
	}
	s.initialized = nil
	wtxn.Commit()
	return broken, nil
}

// update brings the files up to date.
func (s *source) update(t *tree) {
	for name, data := range t.files {
		f := s.files[name]
		if f == nil {
			f = &file{}
			s.files[name] = f
		}
		f.update(s.kinds, data)
	}
	for name, f := range s.files {
		if _, found := t.files[name]; found {
			continue
		}
		if err := t.unreadable(name); err != nil {
			*f = file{entries: f.entries, ignored: f.ignored, err: err}
			continue
		}
		delete(s.files, name)
	}
	for name, err := range t.bad {
		if s.files[name] == nil {
			s.files[name] = &file{err: err}
		}
	}
}

// wanted returns the objects of all files, and what there is to say about files
// of which some object does not count.
func (s *source) wanted() (map[id]entry, map[string][]string) {
	var (
		wanted = map[id]entry{}
		in     = map[id]string{}
		notes  = map[string][]string{}
	)
	for _, name := range slices.Sorted(maps.Keys(s.files)) {
		for _, e := range s.files[name].entries {
			first, found := wanted[e.id()]
			switch {
			case !found:
				wanted[e.id()], in[e.id()] = e, name
			case in[e.id()] == name:
				notes[name] = append(notes[name], fmt.Sprintf("%s: %s is in %s already", e.where, e.id(), first.where))
			default:
				notes[name] = append(notes[name], fmt.Sprintf("%s: %s is in %s already", e.where, e.id(), in[e.id()]))
			}
		}
	}
	return wanted, notes
}

// locked returns the tables to write to.
func (s *source) locked() []statedb.TableMeta {
	locked := []statedb.TableMeta{s.sources}
	for _, store := range s.stores {
		if !slices.ContainsFunc(locked, func(t statedb.TableMeta) bool { return t.Name() == store.Table.Name() }) {
			locked = append(locked, store.Table)
		}
	}
	return locked
}

// store makes the rows those of the wanted objects. An object that is the same
// as before is from a file that did not change.
func (s *source) store(wtxn statedb.WriteTxn, wanted map[id]entry) error {
	for i := range s.stored {
		if _, found := wanted[i]; found {
			continue
		}
		if err := s.stores[i.kind].Delete(wtxn, i.name); err != nil {
			return err
		}
		delete(s.stored, i)
	}
	// In a fixed order, so that what follows from it is the same each time.
	for _, name := range slices.Sorted(maps.Keys(s.files)) {
		for _, e := range s.files[name].entries {
			if wanted[e.id()].object != e.object || s.stored[e.id()] == e.object {
				continue
			}
			if err := s.stores[e.kind].Put(wtxn, e.object); err != nil {
				return err
			}
			s.stored[e.id()] = e.object
		}
	}
	return nil
}

// tell writes the rows about the files.
func (s *source) tell(wtxn statedb.WriteTxn, t *tree, notes map[string][]string) (broken, err error) {
	var problems []error
	for _, name := range slices.Sorted(maps.Keys(s.files)) {
		f := s.files[name]
		if err := s.tellRow(wtxn, f.row(name, notes[name])); err != nil {
			return nil, err
		}
		if f.err != nil {
			problems = append(problems, fmt.Errorf("%s: %w", name, f.err))
		}
	}
	for row := range s.sources.All(wtxn) {
		if s.files[row.Source] != nil {
			continue
		}
		if _, _, err := s.sources.Delete(wtxn, row); err != nil {
			return nil, err
		}
	}
	return errors.Join(problems...), nil
}

// tellRow writes a row about a file, and logs it, unless it says nothing new.
func (s *source) tellRow(wtxn statedb.WriteTxn, row *tables.ObjectSource) error {
	old, _, found := s.sources.Get(wtxn, tables.ObjectSourceByName(row.Source))
	if found && *old == *row {
		return nil
	}
	if row.Error != "" && (!found || old.Error != row.Error) {
		s.log.Warn("Manifest has a problem", "file", row.Source, "state", row.State, "error", row.Error)
	}
	_, _, err := s.sources.Insert(wtxn, row)
	return err
}

// unreadable says that the directory as a whole cannot be read. All that was
// known stays.
func (s *source) unreadable(problem error) error {
	wtxn := s.db.WriteTxn(s.sources)
	defer wtxn.Abort()
	err := s.tellRow(wtxn, &tables.ObjectSource{Source: s.dir, State: "broken", Objects: len(s.stored), Error: problem.Error()})
	wtxn.Commit()
	return err
}
