// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
	"github.com/sluice-net/sluice/tables/cnifile"
)

// States of an interface in the answer to GET /cni/wait.
const (
	CNIInForce = "in-force" // all that policies say of the pod is in the kernel
	CNIHeld    = "held"     // the pod is not known: what a policy could concern is dropped
)

// CNIAnswer is the answer to GET /cni/wait.
type CNIAnswer struct {
	State  string `json:"state"`
	Reason string `json:"reason,omitempty"` // why the pod is held
}

const (
	// unknownFor is how long a pod that nothing is known of is waited for: the
	// object of a static pod comes after its interface.
	unknownFor = 3 * time.Second

	// maxCNIWait bounds the time that the client gives.
	maxCNIWait = 5 * time.Minute
)

// cniWaiter has the tables by which it is known what of a pod is in the kernel.
type cniWaiter struct{ tables cniTables }

type cniTables struct {
	cell.In

	DB             *statedb.DB
	Plugin         tables.CNIPlugin                     `optional:"true"`
	CNIAttachments statedb.Table[*tables.CNIAttachment] `optional:"true"`
	Attachments    statedb.Table[*tables.Attachment]    `optional:"true"`
	Pods           statedb.Table[*tables.Pod]           `optional:"true"`
	Subjects       statedb.Table[*tables.Subject]       `optional:"true"`
	Routes         statedb.Table[*tables.SubjectRoute]  `optional:"true"`
	IPCache        statedb.Table[*tables.IPCache]       `optional:"true"`
	Members        statedb.Table[*tables.Member]        `optional:"true"`
	PodMirror      statedb.Table[*tables.PodMirror]     `optional:"true"`
	SubjectMirror  statedb.Table[*tables.SubjectMirror] `optional:"true"`
	RouteMirror    statedb.Table[*tables.RouteMirror]   `optional:"true"`
	IPCacheMirror  statedb.Table[*tables.IPCacheMirror] `optional:"true"`
	PeerMirror     statedb.Table[*tables.PeerMirror]    `optional:"true"`
	ConfigMirror   statedb.Table[*tables.ConfigMirror]  `optional:"true"`
	Slots          statedb.Table[*tables.Slot]          `optional:"true"`
	Policies       statedb.Table[*tables.NetworkPolicy] `optional:"true"`
	Enforcement    tables.Enforcement                   `optional:"true"`
}

// newCNIWaiter returns nil if the agent lacks a table, as in tests of this package.
func newCNIWaiter(t cniTables) *cniWaiter {
	if t.CNIAttachments == nil || t.Attachments == nil || t.Pods == nil || t.Subjects == nil ||
		t.Routes == nil || t.IPCache == nil || t.Members == nil || t.PodMirror == nil ||
		t.SubjectMirror == nil || t.RouteMirror == nil || t.IPCacheMirror == nil ||
		t.PeerMirror == nil || t.ConfigMirror == nil || t.Slots == nil || t.Policies == nil {
		return nil
	}
	return &cniWaiter{tables: t}
}

// waitCNI answers when all that policies say of the pod of an interface is in the
// kernel, or the pod is not known for a while and held. The error after the given
// time is 503: the client may ask again.
func (h *handlers) waitCNI(w http.ResponseWriter, r *http.Request) {
	container, ifName := r.FormValue("container"), r.FormValue("interface")
	timeout, err := time.ParseDuration(r.FormValue("timeout"))
	switch {
	case h.cni == nil || !h.cni.tables.Plugin.Enabled:
		writeError(w, http.StatusNotFound,
			"this agent does not follow the CNI plugin: --cni-plugin is false")
		return
	case container == "" || ifName == "":
		writeError(w, http.StatusBadRequest, "want ?container= and ?interface=")
		return
	case err != nil || timeout < 0 || timeout > maxCNIWait:
		writeError(w, http.StatusBadRequest, "want ?timeout= of at most %s, as in 10s", maxCNIWait)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), timeout)
	defer cancel()
	answer, err := h.cni.wait(ctx, cnifile.FileName(container, ifName))
	if err != nil {
		writeError(w, http.StatusServiceUnavailable, "%v", err)
		return
	}
	writeCompact(w, answer)
}

// wait returns when the policies of an interface are applied, or held for long enough.
func (c *cniWaiter) wait(ctx context.Context, file string) (*CNIAnswer, error) {
	var heldSince time.Time
	for {
		l := cniLook{cniTables: &c.tables, txn: c.tables.DB.ReadTxn(), watch: statedb.NewWatchSet()}
		waitsFor, unknown := l.look(file)
		if waitsFor == "" && unknown == "" {
			return &CNIAnswer{State: CNIInForce}, nil
		}
		round, cancel := ctx, context.CancelFunc(func() {})
		if waitsFor != "" {
			heldSince = time.Time{}
		} else {
			if heldSince.IsZero() {
				heldSince = time.Now()
			}
			if time.Since(heldSince) >= unknownFor {
				return &CNIAnswer{State: CNIHeld, Reason: unknown}, nil
			}
			round, cancel = context.WithDeadline(ctx, heldSince.Add(unknownFor))
		}
		_, _ = l.watch.Wait(round, 0) // whatever the reason, look again
		cancel()
		if ctx.Err() != nil {
			return nil, fmt.Errorf("not in force yet: %s", waitsFor+unknown)
		}
	}
}

// cniLook is a look at the tables, which remembers what to watch for changes.
type cniLook struct {
	*cniTables
	txn   statedb.ReadTxn
	watch *statedb.WatchSet
}

// lookUp gets a row, which is watched also while there is none.
func lookUp[Row any](l *cniLook, table statedb.Table[Row], query statedb.Query[Row]) (Row, bool) {
	row, _, watch, found := table.GetWatch(l.txn, query)
	l.watch.Add(watch)
	return row, found
}

// look says what an interface waits for, and if for nothing why its pod is held.
// Both are empty if the policies of the pod are applied.
func (l *cniLook) look(file string) (waitsFor, unknown string) {
	a, found := lookUp(l, l.CNIAttachments, tables.CNIAttachmentByFile(file))
	switch {
	case !found:
		return "the agent has not read " + file, ""
	case len(a.Addrs) == 0 || a.IfIndex == 0:
		return file + ": " + a.Error, ""
	}
	if flipped, watch := l.Slots.Initialized(l.txn); !flipped {
		l.watch.Add(watch)
		return "the maps of this agent are not in force yet", ""
	}
	for _, program := range []bpf.Program{bpf.ProgramFromPod, bpf.ProgramToPod} {
		if reason := l.program(a, program); reason != "" {
			return reason, ""
		}
	}
	for _, addr := range a.Addrs {
		reason, held := l.address(a, addr)
		if reason != "" {
			return reason, ""
		}
		if held != "" {
			unknown = held
		}
	}
	if unknown != "" && !l.holds() {
		return "the programs do not hold pods by network policies yet", ""
	}
	return "", unknown
}

// holds reports whether a pod of which nothing is known is held.
func (l *cniLook) holds() bool {
	_, entries := l.ConfigMirror.AllWatch(l.txn)
	l.watch.Add(entries)
	return tables.ConfigHolds(l.txn, l.ConfigMirror, l.Policies, l.Enforcement)
}

func (l *cniLook) program(a *tables.CNIAttachment, program bpf.Program) string {
	row, found := lookUp(l, l.Attachments,
		tables.AttachmentByID(tables.AttachmentID{IfIndex: a.IfIndex, Program: program}))
	switch {
	case !found:
		return fmt.Sprintf("program %s is not to run at %s yet", program, a.Device)
	case row.Status.Kind == reconciler.StatusKindDone,
		row.Status.Kind == reconciler.StatusKindRefreshing:
		return ""
	case row.Status.GetError() != "":
		return fmt.Sprintf("program %s at %s: %s", program, a.Device, row.Status.GetError())
	}
	return fmt.Sprintf("program %s does not run at %s yet", program, a.Device)
}

// address says what an address of an interface waits for, or why it is held.
func (l *cniLook) address(a *tables.CNIAttachment, addr netip.Addr) (waitsFor, held string) {
	pod, found := lookUp(l, l.Pods, tables.PodByAddr(addr))
	switch {
	case !found || !pod.Local || pod.Endpoint != a.Pod || int(pod.IfIndex) != a.IfIndex:
		return fmt.Sprintf("%s is not known to be of %s yet", addr, a.Device), ""
	case !inKernel(l, l.PodMirror, pod.MapKey(), pod.MapValue()):
		return fmt.Sprintf("%s is not in sluice_pods yet", addr), ""
	case pod.Subject == 0:
		return "", fmt.Sprintf("%s is held: it is not known yet what policies say of pod %s", addr,
			pod.Endpoint)
	}
	if waitsFor := l.subject(pod.Subject); waitsFor != "" {
		return fmt.Sprintf("%s: %s", addr, waitsFor), ""
	}
	peer, found := lookUp(l, l.IPCache, tables.IPCacheByPrefix(netip.PrefixFrom(addr, addr.BitLen())))
	if !found || !inKernel(l, l.IPCacheMirror, peer.MapKey(), peer.MapValue()) {
		return fmt.Sprintf("%s is not in sluice_ipcache yet", addr), ""
	}
	member, found := lookUp(l, l.Members, tables.MemberByNumber(peer.Member))
	if !found || !inKernel(l, l.PeerMirror, member.MapKey(), member.MapValue()) {
		return fmt.Sprintf(
			"%s: the class of member %d is not in sluice_peers yet", addr, peer.Member,
		), ""
	}
	return "", ""
}

// subject says what the kernel does not have of a subject as it is wanted.
func (l *cniLook) subject(number uint32) (waitsFor string) {
	subject, found := lookUp(l, l.Subjects, tables.SubjectByNumber(number))
	if !found || !inKernel(l, l.SubjectMirror, subject.MapKey(), subject.MapValue()) {
		return fmt.Sprintf("the ruleset of subject %d is not in sluice_subjects yet", number)
	}
	route, found := lookUp(l, l.Routes, tables.RouteBySubject(number))
	if found {
		if !inKernel(l, l.RouteMirror, route.MapKey(), route.MapValue()) {
			return fmt.Sprintf("the route of subject %d is not in sluice_routes yet", number)
		}
		return ""
	}
	key := bpf.SubjectKey{Subject: number}
	kernelRoute := tables.MirrorByKey[bpf.SubjectKey, bpf.RouteValue](key)
	if _, found := lookUp(l, l.RouteMirror, kernelRoute); found {
		return fmt.Sprintf("a route of subject %d is in sluice_routes still", number)
	}
	return ""
}

// inKernel reports whether the kernel has an entry with a value, and is about to have no other.
func inKernel[K, V tables.MapPart](
	l *cniLook, mirror statedb.Table[*tables.Mirror[K, V]], key K, value V,
) bool {
	entry, found := lookUp(l, mirror, tables.MirrorByKey[K, V](key))
	return found && entry.Present && !entry.Busy && entry.Value == value
}
