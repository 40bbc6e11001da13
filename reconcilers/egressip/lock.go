// SPDX-License-Identifier: Apache-2.0

package egressip

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// lock is the Lease of an address. What it writes as the holder puts the deadline in the kernel
// off: counted from before the request, it is always earlier than when others may take the
// Lease.
type lock struct {
	*resourcelock.LeaseLock
	valid   time.Duration // after the beginning of a request
	renewed func(deadline uint64, generation uint32) error

	// release is set when the address is withdrawn. An agent that just stops keeps the Lease,
	// as it may be back before it runs out.
	release atomic.Bool
}

var errKept = errors.New("the lease is kept")

// leaseName is the name of the Lease of an address: such names have no colons.
func leaseName(addr netip.Addr) string {
	text := addr.StringExpanded()
	return "sluice-egress-ip-" + strings.NewReplacer(".", "-", ":", "-").Replace(text)
}

func newLock(p params, addr netip.Addr) *lock {
	return &lock{valid: p.Config.valid(), LeaseLock: &resourcelock.LeaseLock{
		LeaseMeta:  metav1.ObjectMeta{Namespace: p.Connection.Namespace, Name: leaseName(addr)},
		Client:     p.Connection.Leases,
		LockConfig: resourcelock.ResourceLockConfig{Identity: p.LocalNode.Name},
	}}
}

// Create implements [resourcelock.Interface].
func (l *lock) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return l.write(ctx, record, l.LeaseLock.Create)
}

// Update implements [resourcelock.Interface].
func (l *lock) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return l.write(ctx, record, l.LeaseLock.Update)
}

func (l *lock) write(
	ctx context.Context, record resourcelock.LeaderElectionRecord,
	write func(context.Context, resourcelock.LeaderElectionRecord) error,
) error {
	if record.HolderIdentity == "" && !l.release.Load() {
		return errKept
	}
	before, err := bootTime()
	if err != nil {
		return err
	}
	if err := write(ctx, record); err != nil || record.HolderIdentity == "" {
		return err
	}
	return l.renewed(before+uint64(l.valid), uint32(record.LeaderTransitions))
}

// bootTime returns the time of the deadlines, which goes on while the machine sleeps.
func bootTime() (uint64, error) {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err != nil {
		return 0, fmt.Errorf("read the clock: %w", err)
	}
	return uint64(now.Nano()), nil
}
