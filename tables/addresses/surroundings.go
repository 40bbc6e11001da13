// SPDX-License-Identifier: Apache-2.0

package addresses

import "github.com/sluice-net/sluice/bpf"

// surroundings are the classes of the prefixes of more than one address that the
// kernel has. What is around an address is asked for each that comes or goes, and
// prefixes are of a few lengths: so this costs a look or two and no memory.
type surroundings struct {
	classes map[bpf.IPCacheKey]uint32
	lengths [maxLength]int // how many there are of each
}

const maxLength = 32 + 128 // of a key that is one address

func (s *surroundings) set(key bpf.IPCacheKey, class uint32) {
	if key.Prefix().IsSingleIP() {
		return
	}
	if _, had := s.classes[key]; !had {
		s.lengths[key.PrefixLen]++
	}
	s.classes[key] = class
}

func (s *surroundings) remove(key bpf.IPCacheKey) {
	if _, had := s.classes[key]; had {
		s.lengths[key.PrefixLen]--
		delete(s.classes, key)
	}
}

// of returns the class of the longest prefix that is around an address or prefix, 0
// if there is none.
func (s *surroundings) of(key bpf.IPCacheKey) uint32 {
	for length := int(key.PrefixLen) - 1; length >= 32; length-- {
		if s.lengths[length] == 0 {
			continue
		}
		if class, found := s.classes[bpf.Truncated(key, length)]; found {
			return class
		}
	}
	return 0
}
