// SPDX-License-Identifier: Apache-2.0

package pools

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sluice-net/sluice/tables"
)

// Reasons of conditions, and of Events.
const (
	reasonAssigned  = "Assigned"
	reasonNoBlock   = "NoFreeBlock"
	reasonNoAddress = "NoFreeAddress"
	reasonUsable    = "Usable"
	reasonOfNode    = "AddressOfNode"
	reasonValid     = "Valid"
	reasonInvalid   = "Invalid"
)

// maxNamed bounds the nodes, policies or fields that a message names.
const maxNamed = 3

// accepted is the condition that every field of the object can be used.
func accepted(errors []tables.FieldError) tables.Condition {
	texts := make([]string, len(errors))
	for i, e := range errors {
		texts[i] = e.Error()
	}
	c := assigned(tables.ConditionAccepted, "Every field can be used", reasonInvalid,
		fmt.Sprintf("%d fields cannot be used", len(errors)), texts)
	if c.Status == tables.ConditionTrue {
		c.Reason = reasonValid
	}
	return c
}

func blocksAssigned(without []string, nodes int) tables.Condition {
	return assigned(tables.ConditionBlocksAssigned, "Each node has a block of ports", reasonNoBlock,
		fmt.Sprintf("%d of %d nodes have no block of ports, and cannot send with the pool",
			len(without), nodes), without)
}

func addressesAssigned(without []string) tables.Condition {
	return assigned(tables.ConditionAddressesAssigned,
		"Each policy that names the pool has an address", reasonNoAddress,
		fmt.Sprintf("The pool has no free address for %d policies", len(without)), without)
}

// addressesUsable is the condition of a fixed pool that no address which policies name is an
// internal one of a Node: that uses all ports of it itself.
func addressesUsable(ofNodes []string) tables.Condition {
	c := assigned(tables.ConditionAddressesUsable, "No internal address of a Node is named",
		reasonOfNode, fmt.Sprintf("%d addresses that policies name are internal ones of Nodes, "+
			"whose connections are those of the gateway", len(ofNodes)), ofNodes)
	if c.Status == tables.ConditionTrue {
		c.Reason = reasonUsable
	}
	return c
}

// assigned is the condition that nothing is without what the pool gives.
func assigned(condition, all, reason, message string, without []string) tables.Condition {
	if len(without) == 0 {
		return tables.Condition{
			Type: condition, Status: tables.ConditionTrue, Reason: reasonAssigned, Message: all,
		}
	}
	named := strings.Join(without[:min(len(without), maxNamed)], ", ")
	if len(without) > maxNamed {
		named += ", ..."
	}
	return tables.Condition{
		Type: condition, Status: tables.ConditionFalse, Reason: reason, Message: message + ": " + named,
	}
}

// withCondition returns conditions with one of them being another. Since when it has its status
// stays while that does.
func withCondition(
	conditions []tables.PoolCondition, c tables.Condition, now time.Time,
) []tables.PoolCondition {
	is := tables.PoolCondition{Condition: c, Since: now}
	at := slices.IndexFunc(conditions,
		func(o tables.PoolCondition) bool { return o.Type == c.Type })
	if at < 0 {
		return append(slices.Clip(conditions), is)
	}
	if old := conditions[at]; old.Status == c.Status && !old.Since.IsZero() {
		is.Since = old.Since
	}
	conditions = slices.Clone(conditions)
	conditions[at] = is
	return conditions
}

// problems are the conditions that are false, and of which an object does not tell yet.
func problems(conditions, told []tables.PoolCondition) (problems []tables.Problem) {
	for _, c := range conditions {
		isTold := slices.ContainsFunc(told, func(o tables.PoolCondition) bool {
			return o.Condition == c.Condition
		})
		if c.Status == tables.ConditionFalse && !isTold {
			problems = append(problems,
				tables.Problem{Reason: c.Reason, Message: c.Message, Condition: c.Type})
		}
	}
	return problems
}
