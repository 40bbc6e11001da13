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
			c.widths[i] = max(c.widths[i], utf8.RuneCountInString(cell))
		}
	}
	var b strings.Builder
	for _, row := range rows {
		c.append(&b, row)
	}
	_, err := io.WriteString(c.w, b.String())
	return err
}

func (c *Writer) append(b *strings.Builder, row []string) {
	for i, cell := range row {
		b.WriteString(oneLine.Replace(cell))
		if i < len(row)-1 { // no blanks at the end of lines
			b.WriteString(strings.Repeat(" ", c.widths[i]-utf8.RuneCountInString(cell)))
			b.WriteString(gap)
		}
	}
	b.WriteByte('\n')
}
