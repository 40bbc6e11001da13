// SPDX-License-Identifier: Apache-2.0

// Package columns writes rows of text as aligned columns, and colors what tells
// a state.
package columns

import (
	"io"
	"strings"
	"unicode"
	"unicode/utf8"
)

const gap = "   " // between columns

// Writer writes rows to an [io.Writer]. Columns are as wide as the widest cell
// seen so far, so that rows may follow later, when something changed.
type Writer struct {
	// Longest is of how many characters a cell may be: one that is longer is cut,
	// and ends in an ellipsis. 0 is of any number.
	Longest int

	// Color has cells that tell a state colored, by the names in the first row.
	Color bool

	w      io.Writer
	header []string // the first row
	widths []int
}

// NewWriter returns a writer of rows to w.
func NewWriter(w io.Writer) *Writer { return &Writer{w: w} }

// Clean replaces what would move the cursor of a terminal: ends of lines by
// blanks, other control characters, with which an object of the cluster could
// make up output, by a sign for them.
func Clean(cell string) string {
	if strings.IndexFunc(cell, unicode.IsControl) < 0 {
		return cell
	}
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\r' || r == '\t':
			return ' '
		case unicode.IsControl(r):
			return '\uFFFD'
		}
		return r
	}, cell)
}

// Measure widens the columns for rows that are written later.
func (c *Writer) Measure(rows ...[]string) {
	for _, row := range rows {
		for i, cell := range row {
			if i == len(c.widths) {
				c.widths = append(c.widths, 0)
			}
			c.widths[i] = max(c.widths[i], utf8.RuneCountInString(c.cut(cell)))
		}
	}
}

// Write writes rows, aligned with each other and with the rows before.
func (c *Writer) Write(rows ...[]string) error {
	c.Measure(rows...)
	var b strings.Builder
	for _, row := range rows {
		if c.header == nil {
			c.header = row
		}
		c.append(&b, row)
	}
	_, err := io.WriteString(c.w, b.String())
	return err
}

func (c *Writer) cut(cell string) string {
	if c.Longest <= 0 || len(cell) <= c.Longest || utf8.RuneCountInString(cell) <= c.Longest {
		return cell
	}
	return string([]rune(cell)[:c.Longest-1]) + "…"
}

func (c *Writer) append(b *strings.Builder, row []string) {
	for i, cell := range row {
		cell = c.cut(cell)
		b.WriteString(c.paint(i, Clean(cell)))
		if i < len(row)-1 { // no blanks at the end of lines
			b.WriteString(strings.Repeat(" ", c.widths[i]-utf8.RuneCountInString(cell)))
			b.WriteString(gap)
		}
	}
	b.WriteByte('\n')
}

// paint returns a cell in the tone of what it says, which the first row is never.
func (c *Writer) paint(column int, cell string) string {
	if !c.Color || column >= len(c.header) || cell == c.header[column] {
		return cell
	}
	return toneOfCell(c.header[column], cell).Paint(cell)
}
