// SPDX-License-Identifier: Apache-2.0

// Package suggest finds the names that may be meant.
package suggest

import (
	"slices"
	"strings"
)

const (
	most    = 3  // names are suggested
	longest = 64 // name that is compared with others, which takes time
)

// Nearest returns the names that are most like one that does not exist, the
// likest first, and none if none is much like it.
func Nearest(name string, names []string) []string {
	type candidate struct {
		name     string
		distance int
	}
	var candidates []candidate
	if len(name) > longest {
		return nil
	}
	for _, n := range names {
		d := editDistance(n, name)
		if strings.Contains(n, name) || strings.Contains(name, n) {
			d = min(d, 2)
		}
		if d <= max(2, len(name)/3) {
			candidates = append(candidates, candidate{n, d})
		}
	}
	slices.SortStableFunc(candidates, func(a, b candidate) int { return a.distance - b.distance })
	var nearest []string
	for _, c := range candidates[:min(most, len(candidates))] {
		nearest = append(nearest, c.name)
	}
	return nearest
}

// editDistance returns how many bytes must be inserted, deleted or replaced to
// make b of a.
func editDistance(a, b string) int {
	row := make([]int, len(b)+1) // distances of a[:i] to each prefix of b
	for j := range row {
		row[j] = j
	}
	for i := range a {
		diagonal := row[0]
		row[0] = i + 1
		for j := range b {
			replace := diagonal
			if a[i] != b[j] {
				replace++
			}
			diagonal = row[j+1]
			row[j+1] = min(replace, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
