// SPDX-License-Identifier: Apache-2.0

package columns

import (
	"slices"
	"strconv"
	"strings"
)

// Tone is how something that is shown stands.
type Tone string

// The tones, as the escape sequences that begin them. Colors are those of the
// terminal's own palette, which are readable on its background.
const (
	Plain Tone = ""
	Good  Tone = "\x1b[32m" // green
	Warn  Tone = "\x1b[33m" // yellow
	Bad   Tone = "\x1b[31m" // red

	reset = "\x1b[0m"
)

// Paint returns a text in a tone.
func (t Tone) Paint(text string) string {
	if t == Plain {
		return text
	}
	return string(t) + text + reset
}

// words are what tells a state, wherever it does.
var words = map[string]Tone{
	"Done": Good, "Pending": Warn, "Refreshing": Warn, "Error": Bad, // of a row
	"OK": Good, "Stopped": Warn, "Degraded": Bad, // of a module
	"ok": Good, "degraded": Bad, "not ready": Warn, // of the agent
	"in force": Good, "not here": Plain, "pending": Warn, "failed": Bad, "invalid": Bad, "unsupported": Warn, "no gateway": Bad, "conflicted": Warn, // of a policy
	"synced": Good, "syncing": Warn, "absent": Warn, "broken": Bad, // of a source
	"initialized": Good,                 // of a table
	"same":        Plain, "other": Warn, // of an entry of a map
	"UPDATED": Plain, "DELETED": Bad,
}

// verdicts are what tells in a line what became of a packet.
var verdicts = map[string]Tone{"ALLOWED": Good, "DENIED": Bad, "DROP": Bad, "LOST": Warn}

// PaintVerdict returns a text with its verdict in its tone: the first word that
// is one.
func PaintVerdict(text string) string {
	for word := range strings.FieldsSeq(text) {
		if tone := verdicts[strings.TrimSuffix(word, ":")]; tone != Plain {
			return strings.Replace(text, word, tone.Paint(word), 1)
		}
	}
	return text
}

// Columns by what their cells say.
var (
	stateColumns   = []string{"Status", "State", "Level", "Wanted", "Event"} // one of words
	errorColumns   = []string{"Error", "Errors"}                             // why something does not work
	warningColumns = []string{"Conflicts", "Unsupported"}
	failureColumns = []string{"Failed"} // a number
	waitingColumns = []string{"Pending", "Waiting"}
)

// ToneOf returns the tone of a word that tells a state.
func ToneOf(word string) Tone { return words[word] }

// toneOfCell returns the tone of a cell.
func toneOfCell(column, cell string) Tone {
	isNone := cell == "-" || cell == "" || cell == "0"
	switch {
	case slices.Contains(stateColumns, column):
		if strings.HasPrefix(cell, "waits for ") {
			return Warn
		}
		return words[cell]
	case isNone:
		return Plain
	case slices.Contains(errorColumns, column), slices.Contains(failureColumns, column):
		return Bad
	case slices.Contains(warningColumns, column), slices.Contains(waitingColumns, column):
		return Warn
	case column == "Pressure":
		percent, err := strconv.ParseFloat(strings.TrimRight(cell, " %"), 64)
		if err == nil {
			return ToneOfPressure(percent)
		}
	}
	return Plain
}

// ToneOfPressure returns the tone of how full something is, in percent.
func ToneOfPressure(percent float64) Tone {
	switch {
	case percent >= 95:
		return Bad
	case percent >= 80:
		return Warn
	}
	return Plain
}
