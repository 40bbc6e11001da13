// SPDX-License-Identifier: Apache-2.0

package objectstatus

import (
	"fmt"
	"slices"
	"strings"

	"github.com/sluice-net/sluice/tables"
)

const (
	// maxNamed bounds the nodes, destinations or fields that a message names.
	maxNamed = 3
	// maxMessage bounds a message, in bytes.
	maxMessage = 1024
)

// Reasons of conditions, and of Events.
const (
	reasonValid       = "Valid"
	reasonInvalid     = "Invalid"
	reasonUnsupported = "Unsupported"
	reasonProgrammed  = "Programmed"
	reasonFailed      = "Failed"          // the kernel of some node refused a part
	reasonNoGateway   = "NoGateway"       // no node is elected
	reasonNoEgressIP  = "NoEgressAddress" // a gateway has nothing to send with
	reasonNoReports   = "NoReports"       // no node can tell; ReasonPending: nodes have yet to tell
	reasonNoNodes     = "NoNodes"
	reasonConflict    = "Overlap"
	reasonNoConflict  = "NoOverlap"
)

// messageValid is what Cilium's operator says.
const messageValid = "Policy validation succeeded"

// egress fills in what an egress policy's object shall say, and reports whether
// there is one.
func (c *statusRound) egress(row, former *tables.ObjectStatus, changed []string) bool {
	p, _, found := c.Egress.Get(c.in, tables.EgressPolicyByName(row.Policy.Name.Name))
	if !found || p.Namespace != "" { // that has no object
		return false
	}
	row.UID, row.Generation = p.UID, p.Generation
	row.Exceptions = c.exceptions(row, former, changed)
	t := tallyOf(row.Exceptions, c.agents)
	row.Nodes = tables.StatusNodes{Programmed: t.programmed, Total: t.total}
	row.Gateways = c.gateways(p, row)
	row.Conditions = []tables.Condition{
		validity(tables.ConditionAccepted, p.Errors, "Every field can be used"),
		programmed(t, row.Gateways, c.readable), conflicted(t),
	}
	if is := &row.Conditions[1]; is.Reason == reasonNoGateway && p.WaitsForAddr() {
		is.Reason = tables.ReasonPending // the pool says if it has none
	}
	for _, is := range row.Conditions {
		if isProblem(is) {
			row.Problems = append(row.Problems,
				tables.Problem{Reason: is.Reason, Message: is.Message, Condition: is.Type})
		}
	}
	return true
}

// isProblem reports whether a condition is worth an Event: that something is on its
// way is not.
func isProblem(c tables.Condition) bool {
	good := tables.ConditionTrue
	if c.Type == tables.ConditionConflicted {
		good = tables.ConditionFalse
	}
	return c.Status != good && c.Status != tables.ConditionUnknown && c.Reason != tables.ReasonPending
}

// network fills in what a network policy's object shall say, and reports whether
// that is anything.
func (c *statusRound) network(row *tables.ObjectStatus) bool {
	p, _, found := c.Network.Get(c.in, tables.NetworkPolicyByID(row.Policy))
	if !found {
		return false
	}
	row.UID, row.Generation = p.UID, p.Generation
	condition := ""
	if p.Kind != tables.PolicyKubernetes { // which has no status
		is := validity(tables.ConditionValid, p.Errors, messageValid)
		if is.Status == tables.ConditionTrue {
			is.Reason = "" // as Cilium's operator leaves it
		}
		row.Conditions, condition = []tables.Condition{is}, is.Type
	}
	if len(p.Errors) > 0 {
		row.Problems = append(
			row.Problems,
			tables.Problem{Reason: reasonInvalid, Message: fieldTexts(p.Errors), Condition: condition},
		)
	}
	if len(p.Unsupported) > 0 {
		row.Problems = append(
			row.Problems, tables.Problem{Reason: reasonUnsupported, Message: fieldTexts(p.Unsupported)},
		)
	}
	if failed := c.refusals(row); failed.count > 0 {
		row.Problems = append(
			row.Problems, tables.Problem{Reason: reasonFailed, Message: failed.text("; ")},
		)
	}
	return len(row.Conditions) > 0 || len(row.Problems) > 0
}

// gateways returns the gateways of a policy, each node once.
func (c *statusRound) gateways(
	p *tables.EgressPolicy, row *tables.ObjectStatus,
) (gateways []tables.StatusGateway) {
	election, _, found := c.Elections.Get(c.in,
		tables.GatewayElectionByDigest(tables.GroupDigest(p.Gateways)))
	if !found {
		return nil
	}
	for _, choice := range election.Gateways {
		if choice.Node == "" {
			gateways = append(gateways, tables.StatusGateway{
				Reason: choice.Reason, Awaited: choice.Awaited,
			})
			continue
		}
		if slices.ContainsFunc(
			gateways, func(g tables.StatusGateway) bool { return g.Node == choice.Node },
		) {
			continue
		}
		g := tables.StatusGateway{Node: choice.Node}
		if said, _ := c.said(row, choice.Node); said != nil {
			g.EgressIPs, g.Reason = said.EgressIPs, said.GatewayError
		}
		gateways = append(gateways, g)
	}
	return gateways
}

// validity is the condition that every field of an object can be used.
func validity(condition string, errors []tables.FieldError, valid string) tables.Condition {
	if len(errors) == 0 {
		return tables.Condition{
			Type: condition, Status: tables.ConditionTrue, Reason: reasonValid, Message: valid,
		}
	}
	return tables.Condition{
		Type: condition, Status: tables.ConditionFalse, Reason: reasonInvalid,
		Message: fieldTexts(errors),
	}
}

// programmed is the condition that an egress policy is applied everywhere.
func programmed(t tally, gateways []tables.StatusGateway, readable bool) tables.Condition {
	is := func(status tables.ConditionStatus, reason, message string) tables.Condition {
		return tables.Condition{
			Type: tables.ConditionProgrammed, Status: status, Reason: reason, Message: bounded(message),
		}
	}
	elected := slices.ContainsFunc(gateways, func(g tables.StatusGateway) bool { return g.Node != "" })
	awaited := slices.IndexFunc(gateways, func(g tables.StatusGateway) bool { return g.Awaited })
	unusable := slices.IndexFunc(
		gateways, func(g tables.StatusGateway) bool { return g.Node != "" && g.Reason != "" },
	)
	switch {
	case !readable:
		return is(
			tables.ConditionUnknown, reasonNoReports,
			"There is no CRD "+tables.NodeReportSource+" by which nodes could tell",
		)
	case t.failed.count > 0:
		return is(tables.ConditionFalse, reasonFailed, t.failed.text("; "))
	case len(gateways) > 0 && !elected && awaited < 0:
		return is(tables.ConditionFalse, reasonNoGateway, "The traffic is dropped: "+gateways[0].Reason)
	case unusable >= 0:
		g := gateways[unusable]
		return is(
			tables.ConditionFalse, reasonNoEgressIP,
			fmt.Sprintf("%s drops the traffic: %s", g.Node, g.Reason),
		)
	case t.waiting.count > 0:
		return is(tables.ConditionFalse, tables.ReasonPending, "Not yet on "+t.waiting.text(", "))
	case t.unheard.count > 0:
		return is(
			tables.ConditionUnknown, tables.ReasonPending, "No report yet from "+t.unheard.text(", "),
		)
	case t.silent.count > 0:
		return is(
			tables.ConditionUnknown, reasonNoReports,
			"No room for it in the reports of "+t.silent.text(", "),
		)
	case t.total == 0:
		return is(tables.ConditionUnknown, reasonNoNodes, "No node is ready")
	case awaited >= 0 && !elected:
		return is(
			tables.ConditionFalse, tables.ReasonPending,
			"The traffic is dropped: "+gateways[awaited].Reason,
		)
	}
	return is(tables.ConditionTrue, reasonProgrammed, "In force on every node")
}

// conflicted is the condition that an egress policy loses destinations to others.
func conflicted(t tally) tables.Condition {
	if len(t.losesTo) == 0 {
		return tables.Condition{
			Type: tables.ConditionConflicted, Status: tables.ConditionFalse, Reason: reasonNoConflict,
			Message: "No older policy has its destinations",
		}
	}
	return tables.Condition{
		Type: tables.ConditionConflicted, Status: tables.ConditionTrue, Reason: reasonConflict,
		Message: bounded(shortened(t.losesTo, "; ", "destinations")),
	}
}

func fieldTexts(errors []tables.FieldError) string {
	texts := make([]string, len(errors))
	for i, e := range errors {
		texts[i] = e.Error()
	}
	return bounded(shortened(texts, "; ", "errors"))
}

// text is [shortened] of the nodes.
func (n someNodes) text(separator string) string {
	return named(n.first, n.count, separator, "nodes")
}

// shortened joins the first few of some texts, and says how many more there are.
func shortened(texts []string, separator, what string) string {
	return named(texts, len(texts), separator, what)
}

// named is [shortened] for so many texts, of which the first few are given.
func named(texts []string, count int, separator, what string) string {
	if count <= maxNamed {
		return strings.Join(texts, separator)
	}
	return fmt.Sprintf(
		"%s%sand %d more %s", strings.Join(texts[:maxNamed], separator), separator, count-maxNamed, what,
	)
}

// bounded cuts a text that is too long, not within a character.
func bounded(text string) string {
	if len(text) <= maxMessage {
		return text
	}
	return strings.ToValidUTF8(text[:maxMessage-3], "") + "..."
}
