// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"maps"
	"slices"
)

// MapsOf returns the names of the maps that each program refers to, in order, by
// the name of the program: of the programs that this binary has, loaded or not.
func MapsOf() (map[string][]string, error) {
	spec, err := Spec()
	if err != nil {
		return nil, err
	}
	uses := map[string][]string{}
	for name, program := range spec.Programs {
		found := map[string]bool{}
		for _, instruction := range program.Instructions {
			if instruction.IsLoadFromMap() && spec.Maps[instruction.Reference()] != nil {
				found[instruction.Reference()] = true
			}
		}
		uses[name] = slices.Sorted(maps.Keys(found))
	}
	return uses, nil
}
