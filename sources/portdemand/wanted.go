// SPDX-License-Identifier: Apache-2.0

package portdemand

import (
	"time"

	"github.com/sluice-net/sluice/tables"
)

// wanted returns how many blocks of a size a node wants that has some: more if it uses more than
// half of them, so that the other half lasts until it has them. One less is wanted if it would
// have three quarters of that unused, at the most that was used for a while. So what one more was
// wanted for is no reason to want one less.
func wanted(has, size, used, most int) int {
	wants := max(has, 1)
	for wants > 1 && 4*most < (wants-1)*size {
		wants--
	}
	for wants < tables.MaxNodeBlocks && 2*used > wants*size {
		wants++
	}
	return min(wants, tables.MaxNodeBlocks)
}

// peak is the most that was used within [peakAge].
type peak struct {
	since time.Time // from when on it is known
	most  []sample  // each less than the one before, and later
}

type sample struct {
	at   time.Time
	used int
}

// add takes in what is used now, and returns the peak. It is not known: there were no samples for
// so long.
func (p *peak) add(now time.Time, used int) (most int, known bool) {
	for len(p.most) > 0 && p.most[len(p.most)-1].used <= used {
		p.most = p.most[:len(p.most)-1]
	}
	p.most = append(p.most, sample{now, used})
	for now.Sub(p.most[0].at) >= peakAge {
		p.most = p.most[1:]
	}
	return p.most[0].used, now.Sub(p.since) >= peakAge
}
