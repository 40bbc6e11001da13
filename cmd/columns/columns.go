// SPDX-License-Identifier: Apache-2.0

// Package columns writes rows of text as aligned columns.
package columns

import (
	"io"
	"strings"
	"unicode/utf8"
)

const gap = "   " // between columns

// Writer writes rows to an [io.Writer]. Columns are as wide as the widest cell
// seen so far, so that rows may follow later, when something changed.
type Writer struct {
	// Longest is of how many characters a cell may be: one that is longer is cut,
	// and ends in an ellipsis. 0 is of any number.
	Longest int

	w      io.Writer
	widths []int
}

// NewWriter returns a writer of rows to w.
func NewWriter(w io.Writer) *Writer { return &Writer{w: w} }

var oneLine = strings.NewReplacer("\n", " ", "\r", " ", "\t", " ")

// Write writes rows, aligned with each other and with the rows before.
func (c *Writer) Write(rows ...[]string) error {
	for _, row := range rows {
		for i, cell := range row {
			if i == len(c.widths) {
				c.widths = append(c.widths, 0)
			}
			c.widths[i] = max(c.widths[i], utf8.RuneCountInString(c.cut(cell)))
		}
	}
	var b strings.Builder
	for _, row := range rows {
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
		b.WriteString(oneLine.Replace(cell))
		if i < len(row)-1 { // no blanks at the end of lines
			b.WriteString(strings.Repeat(" ", c.widths[i]-utf8.RuneCountInString(cell)))
			b.WriteString(gap)
		}
	}
	b.WriteByte('\n')
}
