// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"strconv"
	"time"

	"github.com/cilium/statedb/index"
)

// Kinds of tampering.
const (
	TamperedMissing  = "missing"  // an entry is gone
	TamperedChanged  = "changed"  // an entry has another value
	TamperedForeign  = "foreign"  // an entry that the agent has not written
	TamperedDetached = "detached" // a program is not attached any more
	TamperedReplaced = "replaced" // another program or map is in the place of the agent's
	TamperedUnpinned = "unpinned" // a pin is gone
	TamperedBehind   = "behind"   // another program sees packets first
)

// Tampering is what something other than the agent has changed in the kernel, of one object and
// of one kind. What is not behind another program was repaired, or is about to be.
type Tampering struct {
	Object  string    `json:"object"` // name of a map or program
	Kind    string    `json:"kind"`
	Count   uint64    `json:"count"` // since the agent's start
	Last    time.Time `json:"last"`
	Example string    `json:"example"` // of what was found last
}

// TamperingID is the primary key of a [Tampering].
type TamperingID struct{ Object, Kind string }

// Key is the index key of the identifier.
func (id TamperingID) Key() index.Key { return index.String(id.String()) }

func (id TamperingID) String() string { return id.Object + "/" + id.Kind }

// TableHeader implements [statedb.TableWritable].
func (*Tampering) TableHeader() []string {
	return []string{"Object", "Kind", "Count", "Example", "Last"}
}

// TableRow implements [statedb.TableWritable].
func (t *Tampering) TableRow() []string {
	return []string{
		t.Object, t.Kind, strconv.FormatUint(t.Count, 10), orDash(t.Example),
		t.Last.Format(time.RFC3339),
	}
}

var (
	tamperingID = UniqueIndex("id",
		KeysOf(TamperingID.Key, func(s string) (index.Key, error) { return index.String(s), nil }),
		func(t *Tampering) TamperingID { return TamperingID{t.Object, t.Kind} })

	// TamperingByID queries what was found of an object, of a kind.
	TamperingByID = tamperingID.Query
)

// NewTamperingTable creates the table of what others have changed.
var NewTamperingTable = Declare("tampering", tamperingID)
