// SPDX-License-Identifier: Apache-2.0

package files

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"

	"github.com/sluice-net/sluice/sources/objects"
	"github.com/sluice-net/sluice/tables"
)

// file is a manifest.
type file struct {
	digest  [sha256.Size]byte // of what was read last, good or not
	entries []entry           // the last good objects
	ignored []string          // kinds that nothing reads
	err     error             // why what was read last is not good
}

// entry is an object in a file.
type entry struct {
	kind   *objects.Kind
	object *objects.Object
	where  string
}

// id tells objects apart.
type id struct {
	kind *objects.Kind
	name tables.Name
}

func (e entry) id() id { return id{e.kind, e.object.Name} }

func (i id) String() string {
	return i.kind.Kind + " " + strings.TrimPrefix(i.name.String(), "/")
}

// update takes in what the file now says. If that cannot be used as a whole,
// the file keeps its objects.
func (f *file) update(kinds map[string]*objects.Kind, data []byte) {
	digest := sha256.Sum256(data)
	if digest == f.digest {
		return
	}
	f.digest = digest
	entries, ignored, err := decode(kinds, data)
	if f.err = err; err == nil {
		f.entries, f.ignored = entries, ignored
	}
}

func decode(kinds map[string]*objects.Kind, data []byte) (entries []entry, ignored []string, err error) {
	docs, err := objects.ReadManifest(data)
	if err != nil {
		return nil, nil, err
	}
	for _, doc := range docs {
		kind := kinds[kindKey(doc.APIVersion, doc.Kind)]
		if kind == nil {
			ignored = append(ignored, doc.Kind+" of "+doc.APIVersion)
			continue
		}
		object, err := kind.Decode(doc.JSON)
		if err == nil {
			err = object.Err
		}
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", doc, err)
		}
		entries = append(entries, entry{kind, object, doc.String()})
	}
	slices.Sort(ignored)
	return entries, slices.Compact(ignored), nil
}

func kindKey(apiVersion, kind string) string { return apiVersion + " " + kind }

// row returns the row of table object-sources about the file.
func (f *file) row(name string, notes []string) *tables.ObjectSource {
	row := &tables.ObjectSource{Source: name, State: "synced", Objects: len(f.entries)}
	if f.err != nil {
		row.State, row.Error = "broken", f.err.Error()
		return row
	}
	if len(f.ignored) > 0 {
		notes = append(notes, "ignored: "+strings.Join(f.ignored, ", "))
	}
	row.Error = strings.Join(notes, "; ")
	return row
}
