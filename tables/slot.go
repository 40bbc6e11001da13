// SPDX-License-Identifier: Apache-2.0

package tables

import (
	"strconv"
)

// SlotUse is what a slot of maps is used for.
type SlotUse string

const (
	// SlotInForce is the slot that packets use.
	SlotInForce SlotUse = "in force"
	// SlotFilled is the slot that this agent fills, and that will be active.
	SlotFilled SlotUse = "filled"
	// SlotSpare is the slot that the next agent will fill.
	SlotSpare SlotUse = "spare"
)

// Slot is one of the two slots of maps. An agent that starts fills the slot that is not active.
// When that has everything desired, except what the kernel refuses, one write brings it into force:
// the flip.
type Slot struct {
	Number   uint32  `json:"number"`
	Use      SlotUse `json:"use"`
	Own      bool    `json:"own"`                // reports whether this agent writes to it
	WaitsFor string  `json:"waitsFor,omitempty"` // of one that is filled: what is not written yet
}

// TableHeader implements [statedb.TableWritable].
func (*Slot) TableHeader() []string { return []string{"Slot", "Use", "Own", "WaitsFor"} }

// TableRow implements [statedb.TableWritable].
func (s *Slot) TableRow() []string {
	return []string{
		number(s.Number), string(s.Use), strconv.FormatBool(s.Own), orDash(s.WaitsFor),
	}
}

var slotNumber = UniqueIndex("number", Uint32Keys, func(s *Slot) uint32 { return s.Number })

// SlotByNumber queries a slot.
var SlotByNumber = slotNumber.Query

// NewSlotTable creates the table of slots. It is initialized when this agent's slot is in
// force.
var NewSlotTable = Declare("slots", slotNumber)
