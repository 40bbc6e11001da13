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
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/sluice-net/sluice/tables"
)

// lock is the Lease of an address. What it writes as the holder puts the deadline in the kernel
// off: counted from before the request, it is always earlier than when others may take the
// Lease.
type lock struct {
	*resourcelock.LeaseLock
	valid   time.Duration // after the beginning of a request
	every   time.Duration // how often it is renewed: what comes sooner is not sent
	renewed func(deadline uint64, generation uint32) error
	asked   func(error) // takes in what came of reading the Lease, and why it was not written

	written uint64 // when the last request as the holder that succeeded began, 0 if none has
	holder  string // as last read

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
	of := &resourcelock.LeaseLock{
		LeaseMeta:  metav1.ObjectMeta{Namespace: p.Connection.Namespace, Name: leaseName(addr)},
		Client:     p.Connection.Leases,
		LockConfig: resourcelock.ResourceLockConfig{Identity: p.LocalNode.Name},
		// By which they are found when Sluice is removed: docs/quick-start.md.
		Labels: map[string]string{"app.kubernetes.io/managed-by": tables.ManagedByAgents},
	}
	return &lock{LeaseLock: of, valid: p.Config.valid(), every: p.Config.renewal()}
}

// Get implements [resourcelock.Interface].
func (l *lock) Get(
	ctx context.Context,
) (record *resourcelock.LeaderElectionRecord, raw []byte, err error) {
	record, raw, err = l.LeaseLock.Get(ctx)
	if err == nil {
		l.holder = record.HolderIdentity
	}
	l.asked(unless(err, apierrors.IsNotFound))
	return record, raw, err
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
	isHolder := record.HolderIdentity != ""
	// The elector reads the Lease before it gives it back, and does not look whose it is by then.
	if !isHolder && (!l.release.Load() || l.holder != l.Identity()) {
		return errKept
	}
	before, err := Now()
	if err != nil {
		return err
	}
	if isHolder && l.written != 0 && before < l.written+uint64(l.every) {
		return nil
	}
	if err := write(ctx, record); err != nil || !isHolder {
		l.written = 0
		l.asked(unless(err, apierrors.IsConflict))
		return err
	}
	l.written = before
	return l.renewed(before+uint64(l.valid), uint32(record.LeaderTransitions))
}

// unless returns an error, nil if it is an expected one.
func unless(err error, isExpected func(error) bool) error {
	if isExpected(err) {
		return nil
	}
	return err
}

// Now returns the time of the deadlines of leases, in nanoseconds of CLOCK_BOOTTIME: it goes on
// while the machine sleeps.
func Now() (uint64, error) {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err != nil {
		return 0, fmt.Errorf("read the clock: %w", err)
	}
	return uint64(now.Nano()), nil
}
