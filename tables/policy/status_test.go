// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"testing"

	"github.com/cilium/statedb/reconciler"
	"github.com/stretchr/testify/require"

	"github.com/sluice-net/sluice/bpf"
	"github.com/sluice-net/sluice/tables"
)

const (
	tooLarge    = tables.PolicyTooLarge
	invalid     = tables.PolicyInvalid
	unsupported = tables.PolicyUnsupported
	failed      = tables.PolicyFailed
	pending     = tables.PolicyPending
	notHere     = tables.PolicyNotHere
	inForce     = tables.PolicyInForce
)

// selected has a policy p that selects the label set a, of subject 2, and is compiled to the
// ruleset 12. The kernel has nothing.
func selected(t *testing.T) *harness {
	h := newHarness(t)
	h.policies.Put(policy("p", "app=a"))
	h.rulesets.Put(ruleset(12, "p"))
	h.subjects.Put(subject(2, 12, "a"))
	h.compile("p")
	return h
}

// enforced is selected, in the kernel, with a pod.
func enforced(t *testing.T) *harness {
	h := selected(t)
	h.program(subject(2, 12, "a"))
	h.pods.Put(pod(1, 2))
	h.programPod(1, 2)
	return h
}

// A policy is in force when the kernel has its present content for each label set that it
// selects, never before, and not held up by what it does not select.
func TestStates(t *testing.T) {
	type step struct {
		what             string
		do               func(*harness)
		state            tables.PolicyState
		programmed, want int
	}
	edit := func(h *harness) {
		p := policy("p", "app=a")
		p.Generation = 2
		h.policies.Put(p)
	}
	for name, tc := range map[string]struct {
		from  func(*testing.T) *harness
		steps []step
	}{
		"comes into force": {func(t *testing.T) *harness { return newHarness(t) }, []step{
			{"an object", func(h *harness) { h.policies.Put(policy("p", "app=a")) }, pending, 0, 0},
			{"its ruleset", func(h *harness) {
				h.rulesets.Put(ruleset(12, "p"))
				h.subjects.Put(subject(2, 12, "a"), subject(3, bpf.EmptyRuleset, "b"))
			}, pending, 0, 1},
			{"compiled", func(h *harness) { h.compile("p") }, pending, 0, 1},
			{"announced", func(h *harness) {
				s := subject(2, 12, "a")
				h.mirrors.Put(&tables.SubjectMirror{
					Key: s.MapKey(), Busy: true, Writing: s.MapValue(), Desired: true,
				})
			}, pending, 0, 1},
			{"the mirror has it, the row is not done", func(h *harness) {
				s := subject(2, 12, "a")
				h.mirrors.Put(&tables.SubjectMirror{
					Key: s.MapKey(), Value: s.MapValue(), Present: true, Desired: true,
				})
			}, pending, 0, 1},
			{"both", func(h *harness) { h.program(subject(2, 12, "a")) }, inForce, 1, 1},
			{"another label set", func(h *harness) { h.subjects.Put(subject(4, 12, "c")) }, pending, 1, 2},
			{"which the kernel has", func(h *harness) { h.program(subject(4, 12, "c")) }, inForce, 2, 2},
			{"which goes", func(h *harness) { h.subjects.Put(undesired(subject(4, 12, "c"))) }, inForce, 1, 1},
		}},
		"the row is done, the kernel has another value": {selected, []step{
			{"done", func(h *harness) {
				h.subjects.Put(tables.WithStatus(subject(2, 12, "a"), reconciler.StatusDone()))
			}, pending, 0, 1},
			{"another ruleset", func(h *harness) {
				s := subject(2, 11, "a")
				h.mirrors.Put(&tables.SubjectMirror{Key: s.MapKey(), Value: s.MapValue(), Present: true})
			}, pending, 0, 1},
		}},
		"a write is under way": {enforced, []step{
			{"another value", func(h *harness) {
				s := subject(2, 12, "a")
				h.mirrors.Put(&tables.SubjectMirror{
					Key: s.MapKey(), Value: s.MapValue(), Present: true, Desired: true,
					Busy: true, Writing: bpf.SubjectValue{Ruleset: 11},
				})
			}, pending, 0, 1},
			{"and back", func(h *harness) { h.program(subject(2, 12, "a")) }, inForce, 1, 1},
		}},
		"selects nothing here": {func(t *testing.T) *harness { return newHarness(t) }, []step{
			{"an object", func(h *harness) {
				h.policies.Put(policy("p", "app=x"))
				h.subjects.Put(subject(2, bpf.EmptyRuleset, "a"))
			}, pending, 0, 0},
			{"compiled", func(h *harness) { h.compile("p") }, notHere, 0, 0},
		}},
		"selects pods of other nodes only": {func(t *testing.T) *harness { return newHarness(t) }, []step{
			{"compiled", func(h *harness) {
				h.policies.Put(policy("p", "app=a"))
				s := subject(2, 0, "a")
				s.Local = false
				h.subjects.Put(s)
				h.compile("p")
			}, notHere, 0, 0},
		}},
		"edited": {enforced, []step{
			{"in force", func(*harness) {}, inForce, 1, 1},
			{"an object", edit, pending, 0, 1},
			{"another ruleset", func(h *harness) {
				h.rulesets.Put(ruleset(13, "p"))
				h.subjects.Put(subject(2, 13, "a"))
			}, pending, 0, 1},
			{"compiled", func(h *harness) { h.compile("p") }, pending, 0, 1},
			{"the kernel has it", func(h *harness) { h.program(subject(2, 13, "a")) }, inForce, 1, 1},
			{"the former ruleset goes", func(h *harness) { h.rulesets.Remove(ruleset(12, "p")) }, inForce, 1, 1},
		}},
		"edited, to the same rules": {enforced, []step{
			{"an object", edit, pending, 0, 1},
			{"compiled", func(h *harness) { h.compile("p") }, inForce, 1, 1},
		}},
		"edited, to select nothing": {enforced, []step{
			{"compiled", func(h *harness) {
				edit(h)
				h.subjects.Put(subject(2, bpf.EmptyRuleset, "a"))
				h.compile("p")
			}, pending, 0, 0},
			{"the kernel has it", func(h *harness) { h.program(subject(2, bpf.EmptyRuleset, "a")) }, notHere, 0, 0},
		}},
		// Pods that stay move to another subject; what they leave keeps the former rules.
		"edited while a pod leaves": {enforced, []step{
			{"another subject", func(h *harness) {
				edit(h)
				h.rulesets.Put(ruleset(13, "p"))
				h.subjects.Put(undesired(subject(2, 12, "a")), subject(3, 13, "a"))
				h.pods.Put(pod(1, 3))
				h.compile("p")
			}, pending, 0, 1},
			{"which the kernel has", func(h *harness) { h.program(subject(3, 13, "a")) }, pending, 1, 1},
			{"with the pod", func(h *harness) { h.programPod(1, 3) }, inForce, 1, 1},
		}},
		"edited to select nothing while a pod leaves": {enforced, []step{
			{"another subject", func(h *harness) {
				edit(h)
				h.subjects.Put(undesired(subject(2, 12, "a")), subject(3, bpf.EmptyRuleset, "a"))
				h.program(subject(3, bpf.EmptyRuleset, "a"))
				h.mirrors.Put(&tables.SubjectMirror{
					Key: bpf.SubjectKey{Subject: 2}, Value: bpf.SubjectValue{Ruleset: 12}, Present: true,
				})
				h.pods.Put(pod(1, 3))
				h.compile("p")
			}, pending, 0, 0},
			{"the kernel has the pod", func(h *harness) { h.programPod(1, 3) }, notHere, 0, 0},
		}},
		// The policy has not changed, so its status does not wait for pods that leave.
		"its last pod goes": {enforced, []step{
			{"in force", func(*harness) {}, inForce, 1, 1},
			{"desired no more", func(h *harness) {
				h.pods.Remove(pod(1, 2))
				s := undesired(subject(2, 12, "a"))
				h.subjects.Put(tables.WithStatus(s, reconciler.StatusDone()))
			}, notHere, 0, 0},
		}},
		"a pod comes": {enforced, []step{
			{"which the kernel does not have", func(h *harness) { h.pods.Put(pod(2, 2)) }, inForce, 1, 1},
			{"which it has with other labels", func(h *harness) { h.programPod(2, 9) }, pending, 1, 1},
			{"which it has", func(h *harness) { h.programPod(2, 2) }, inForce, 1, 1},
		}},
		"another policy changes the ruleset": {enforced, []step{
			{"in force", func(*harness) {}, inForce, 1, 1},
			{"another ruleset", func(h *harness) {
				h.rulesets.Put(ruleset(13, "p", "q"))
				h.subjects.Put(subject(2, 13, "a"))
			}, pending, 0, 1},
			{"the kernel has it", func(h *harness) { h.program(subject(2, 13, "a")) }, inForce, 1, 1},
		}},
		"deleted, and made anew": {enforced, []step{
			{"in force", func(*harness) {}, inForce, 1, 1},
			{"anew", func(h *harness) {
				h.policies.Remove(policy("p", "app=a"))
				h.policies.Put(policy("p", "app=a"))
			}, pending, 0, 1},
		}},
		"too large": {enforced, []step{
			{"edited", func(h *harness) {
				edit(h)
				r := ruleset(13, "p")
				r.TooLarge = "70000 entries"
				h.rulesets.Put(r)
				h.subjects.Put(subject(2, 13, "a"))
				h.compile("p")
			}, pending, 0, 1},
			{"the pod is isolated", func(h *harness) { h.program(subject(2, 13, "a")) }, tooLarge, 0, 1},
			{"and another label set", func(h *harness) {
				h.rulesets.Put(ruleset(14, "p"))
				h.program(subject(3, 14, "b"))
			}, tooLarge, 1, 2},
			{"not any more", func(h *harness) {
				h.rulesets.Put(ruleset(15, "p"))
				h.subjects.Put(subject(2, 15, "a"))
			}, pending, 1, 2},
			{"the kernel has it", func(h *harness) { h.program(subject(2, 15, "a")) }, inForce, 2, 2},
		}},
		"the kernel refuses the subject": {selected, []step{
			{"refused", func(h *harness) {
				h.subjects.Put(tables.WithStatus(subject(2, 12, "a"), reconciler.StatusError(errRefused)))
			}, failed, 0, 1},
			{"not any more", func(h *harness) { h.program(subject(2, 12, "a")) }, inForce, 1, 1},
		}},
		"the kernel refuses an entry": {selected, []step{
			{"pending", func(h *harness) {
				h.entries.Put(&tables.PolicyEntry{Ruleset: 12, Set: 7, Reconciled: tables.Pending()})
			}, pending, 0, 1},
			{"refused", func(h *harness) {
				h.entries.Put(&tables.PolicyEntry{Ruleset: 12, Set: 7, Reconciled: tables.Reconciled{Status: reconciler.StatusError(errRefused)}})
			}, failed, 0, 1},
			{"done", func(h *harness) {
				h.entries.Put(&tables.PolicyEntry{Ruleset: 12, Set: 7, Reconciled: tables.Reconciled{Status: reconciler.StatusDone()}})
			}, pending, 0, 1},
		}},
		"the kernel refuses a verdict": {selected, []step{
			{"refused, of others", func(h *harness) {
				h.verdicts.Put(&tables.Verdict{
					Key: bpf.VerdictKey{Set: 7}, Reconciled: tables.Reconciled{Status: reconciler.StatusError(errRefused)},
				})
			}, pending, 0, 1},
			{"the same set", func(h *harness) {
				h.entries.Put(&tables.PolicyEntry{Ruleset: 12, Set: 7, Reconciled: tables.Pending()})
				h.complete.Put(&tables.Compiled{Role: tables.CompiledRuleset, Number: 12})
			}, failed, 0, 1},
			{"done", func(h *harness) {
				h.verdicts.Put(&tables.Verdict{Key: bpf.VerdictKey{Set: 7}, Reconciled: tables.Reconciled{Status: reconciler.StatusDone()}})
			}, pending, 0, 1},
		}},
		"the kernel refuses a pod": {enforced, []step{
			{"refused", func(h *harness) {
				h.pods.Put(tables.WithStatus(pod(2, 2), reconciler.StatusError(errRefused)))
			}, failed, 1, 1},
			{"not any more", func(h *harness) { h.pods.Remove(pod(2, 2)) }, inForce, 1, 1},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			h := tc.from(t)
			for _, s := range tc.steps {
				t.Log(s.what)
				s.do(h)
				h.requireState("p", s.state, s.programmed, s.want)
			}
			h.policies.Remove(policy("p", ""))
			require.Nil(t, h.status("p"), "it is deleted")
		})
	}
}

// None of the policies of a ruleset that is too large is in force for its pods.
func TestTooLargeTogether(t *testing.T) {
	h := newHarness(t)
	h.policies.Put(policy("p", "app=a"), policy("q", "app=a"), policy("other", "app=b"))
	large := ruleset(12, "p", "q")
	large.TooLarge = "70000 entries; the biggest rule is spec.ingress[3]"
	h.rulesets.Put(large)
	h.pods.Put(pod(1, 2))
	for _, name := range []string{"p", "q", "other"} {
		h.compile(name)
	}
	h.program(subject(2, 12, "a"))
	for _, name := range []string{"p", "q"} {
		h.requireState(name, tooLarge, 0, 1)
		require.Equal(t, large.TooLarge, h.status(name).TooLarge)
		require.False(t, h.status(name).WasApplied)
		require.Contains(t, h.status(name).TableRow(), large.TooLarge)
	}
	h.requireState("other", notHere, 0, 0)

	// What is too large is made smaller: the subject has another ruleset.
	h.rulesets.Put(ruleset(13, "p", "q"))
	h.subjects.Put(subject(2, 13, "a"))
	h.requireState("q", pending, 0, 1)
	h.program(subject(2, 13, "a"))
	h.requireState("p", inForce, 1, 1)
	h.requireState("q", inForce, 1, 1)
	require.Empty(t, h.status("q").TooLarge)

	// They are too large again, and then select the pod no more, between two computations.
	h.program(subject(2, 12, "a"))
	h.requireState("q", tooLarge, 0, 1)
	h.program(subject(2, bpf.EmptyRuleset, "a"))
	h.rulesets.Remove(large)
	h.requireState("q", notHere, 0, 0)
}

func TestStatusOfMistakes(t *testing.T) {
	mistake := []tables.FieldError{{Field: "spec.ingress[1]", Reason: "what is wrong"}}
	for name, tc := range map[string]struct {
		change func(*tables.NetworkPolicy)
		state  tables.PolicyState
	}{
		"invalid":     {func(p *tables.NetworkPolicy) { p.Errors = mistake }, invalid},
		"unsupported": {func(p *tables.NetworkPolicy) { p.Unsupported = mistake }, unsupported},
		"both":        {func(p *tables.NetworkPolicy) { p.Errors, p.Unsupported = mistake, mistake }, invalid},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			p := policy("p", "app=a")
			tc.change(p)
			h.policies.Put(p)
			h.rulesets.Put(ruleset(12, "p"))
			h.subjects.Put(subject(2, 12, "a"))
			h.compile("p")
			h.requireState("p", tc.state, 0, 1)
			require.False(t, h.status("p").Applied)

			// What can be used of it is in force all the same.
			h.program(subject(2, 12, "a"))
			h.requireState("p", tc.state, 1, 1)
			s := h.status("p")
			require.True(t, s.Applied)
			require.Contains(t, append(s.Errors, s.Unsupported...), mistake[0].Error())
		})
	}
}

// A revision stays applied once it was: what happens to it later is not new.
func TestWasApplied(t *testing.T) {
	h := selected(t)
	require.False(t, h.status("p").WasApplied)
	h.program(subject(2, 12, "a"))
	require.True(t, h.status("p").WasApplied)
	h.subjects.Put(subject(3, 12, "b"))
	require.Equal(t, pending, h.status("p").State)
	require.True(t, h.status("p").WasApplied)
	h.policies.Put(policy("p", "app=a"))
	require.False(t, h.status("p").WasApplied)
}

// The reason of a refusal is reported once for each label set.
func TestRefused(t *testing.T) {
	h := selected(t)
	h.subjects.Put(subject(3, 12, "b"))
	h.program(subject(2, 12, "a"))
	h.entries.Put(&tables.PolicyEntry{Ruleset: 12, Set: 7, Reconciled: tables.Reconciled{Status: reconciler.StatusError(errRefused)}})
	s := h.status("p")
	require.Equal(t, 2, s.Failed)
	require.Equal(t, "map full", s.Refused)
}
