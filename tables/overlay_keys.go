// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"slices"

	"github.com/cilium/statedb"

	"github.com/sluice-net/sluice/bpf"
)

// OverlayKeys are the keys by which nodes prove the origin of overlay packets: the one entry of
// sluice_keys. Keys are shown by their numbers only.
type OverlayKeys struct {
	Keys           []bpf.OverlayKey `json:"keys"`           // accepted; the first is sent with
	AcceptUnsigned bool             `json:"acceptUnsigned"` // packets without a proof are accepted too
	Reason         string           `json:"reason,omitempty"`

	Reconciled `yaml:",inline"`
}

// Equal reports whether two rows want the same, whatever their status.
func (k *OverlayKeys) Equal(o *OverlayKeys) bool {
	return slices.Equal(k.Keys, o.Keys) && k.AcceptUnsigned == o.AcceptUnsigned && k.Reason == o.Reason
}

// MapKey is the key in sluice_keys.
func (k *OverlayKeys) MapKey() bpf.OverlayKeysKey { return bpf.OverlayKeysKey{} }

// MapValue is the value in sluice_keys.
func (k *OverlayKeys) MapValue() bpf.OverlayKeysValue {
	return bpf.NewOverlayKeysValue(k.Keys, k.AcceptUnsigned)
}

// Open says what the overlay does not protect from; it is empty if that is nothing that a key
// could.
func (k *OverlayKeys) Open() string {
	const host = "a host between the nodes can send as a node from its address"
	switch {
	case len(k.Keys) == 0 && !k.AcceptUnsigned:
		return "there is no key, and nothing is accepted without a proof: no packet from other nodes"
	case len(k.Keys) == 0:
		return "there is no key: " + host
	case k.AcceptUnsigned:
		return "packets without a proof are accepted, as those of the former version: " + host
	}
	return ""
}

// Numbers returns the numbers of the keys.
func (k *OverlayKeys) Numbers() []string { return stringsOf(k.Keys) }

// TableHeader implements [statedb.TableWritable].
func (*OverlayKeys) TableHeader() []string {
	return []string{"Keys", "Unsigned", "Open", "Reason", "Status", "Error"}
}

// TableRow implements [statedb.TableWritable].
func (k *OverlayKeys) TableRow() []string {
	unsigned := "dropped"
	if k.AcceptUnsigned {
		unsigned = "accepted"
	}
	return []string{
		listColumn(k.Numbers(), ", "), unsigned, orDash(k.Open()), orDash(k.Reason),
		k.Status.Kind.String(), orDash(k.Status.GetError()),
	}
}

var (
	overlayKeysIndex = UniqueIndex("index", Uint32Keys,
		func(k *OverlayKeys) uint32 { return k.MapKey().Index })

	// OverlayKeysByIndex queries the keys: there is but the row with index 0.
	OverlayKeysByIndex = overlayKeysIndex.Query
)

// NewOverlayKeysTable creates the table of the overlay's keys.
var NewOverlayKeysTable = Declare("overlay-keys", overlayKeysIndex)

// OwnOverlayKey returns the key that proves what this node sends; found is false if the overlay has
// none.
func OwnOverlayKey(
	txn statedb.ReadTxn, keys statedb.Table[*OverlayKeys],
) (key bpf.OverlayKey, found bool) {
	row, _, found := keys.Get(txn, OverlayKeysByIndex(0))
	if !found || len(row.Keys) == 0 {
		return key, false
	}
	return row.Keys[0], true
}
