// SPDX-License-Identifier: Apache-2.0

package mapsync

import (
	"sync"
	"time"
)

// auditShare is the part of a core that all audits together use at most: one in a hundred.
const auditShare = 100

// pace spreads the pieces of the audits of all maps over time. It is safe for concurrent use.
type pace struct {
	mu   sync.Mutex
	free time.Time // when the work that was done so far has been paid for
}

// next returns when the caller may work again, after it has worked for some time.
func (p *pace) next(now time.Time, worked time.Duration) time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.free.Before(now) {
		p.free = now
	}
	p.free = p.free.Add((auditShare - 1) * worked)
	return p.free
}
