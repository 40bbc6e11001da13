// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"net/netip"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
)

// Numbers of the fields of OTLP's messages, and of its severities (opentelemetry/proto/common,
// resource and logs, v1).
const (
	requestResourceLogs = 1

	resourceLogsResource  = 1
	resourceLogsScopeLogs = 2

	resourceAttributes = 1
	scopeLogsScope     = 1
	scopeLogsRecords   = 2
	scopeName          = 1

	logTime       = 1
	logSeverity   = 2
	logBody       = 5
	logAttributes = 6
	logEventName  = 12

	keyValueKey   = 1
	keyValueValue = 2
	anyString     = 1
	anyInt        = 3

	severityInfo = 9
	severityWarn = 13
)

// logEncoder encodes records as logs in protobuf. It does so by hand, as to make messages of them
// first takes several times as long.
type logEncoder struct{ attribute, log, scope, resource []byte }

// request returns an ExportLogsServiceRequest. It is not in a buffer that is used again, as HTTP
// may read it after its answer.
func (e *logEncoder) request(records []Record, node string) []byte {
	e.scope = appendMessage(e.scope[:0], scopeLogsScope, appendText(nil, scopeName, "sluice.ledger"))
	for i := range records {
		e.encode(&records[i])
		e.scope = appendMessage(e.scope, scopeLogsRecords, e.log)
	}
	e.log = e.log[:0] // of the resource now
	e.text(resourceAttributes, "service.name", "sluice")
	e.text(resourceAttributes, "k8s.node.name", node)
	e.resource = appendMessage(e.resource[:0], resourceLogsResource, e.log)
	e.resource = appendMessage(e.resource, resourceLogsScopeLogs, e.scope)
	return appendMessage(nil, requestResourceLogs, e.resource)
}

// encode makes e.log of a record, with the names of OpenTelemetry's conventions where there are
// some.
func (e *logEncoder) encode(r *Record) {
	add := func(key, value string) {
		if value != "" {
			e.text(logAttributes, key, value)
		}
	}
	addPeer := func(key string, peer netip.AddrPort) {
		if peer.IsValid() {
			e.text(logAttributes, key+".address", peer.Addr().String())
			e.number(key+".port", int64(peer.Port()))
		}
	}
	severity := uint64(severityInfo)
	if r.Event == Missing {
		severity = severityWarn
	}
	e.log = protowire.AppendTag(e.log[:0], logTime, protowire.Fixed64Type)
	e.log = protowire.AppendFixed64(e.log, uint64(r.Time.UnixNano()))
	e.log = protowire.AppendTag(e.log, logSeverity, protowire.VarintType)
	e.log = protowire.AppendVarint(e.log, severity)
	e.attribute = appendText(e.attribute[:0], anyString, string(r.Event))
	e.log = appendMessage(e.log, logBody, e.attribute)
	e.log = appendText(e.log, logEventName, "sluice.ledger."+string(r.Event))

	add("sluice.ledger.reason", r.Reason)
	add("sluice.ledger.step", r.Step)
	add("k8s.namespace.name", r.Namespace)
	add("k8s.pod.name", r.Pod)
	add("sluice.pod.node", r.Node)
	add("network.transport", strings.ToLower(r.Protocol))
	addPeer("source", r.PodAddress)
	addPeer("sluice.egress", r.Egress)
	addPeer("destination", r.Destination)
	if r.ID != 0 {
		e.number("sluice.ledger.id", int64(r.ID))
	}
	if r.Count != 0 {
		e.number("sluice.ledger.count", int64(r.Count))
	}
	if r.Event == End {
		add("sluice.ledger.began", r.Began.Format(time.RFC3339Nano))
		if !r.LastUsed.IsZero() {
			add("sluice.ledger.last_used", r.LastUsed.Format(time.RFC3339))
		}
	}
}

// text adds an attribute to e.log.
func (e *logEncoder) text(field protowire.Number, key, value string) {
	e.attribute = appendText(e.attribute[:0], keyValueKey, key)
	e.attribute = protowire.AppendTag(e.attribute, keyValueValue, protowire.BytesType)
	size := protowire.SizeTag(anyString) + protowire.SizeBytes(len(value))
	e.attribute = protowire.AppendVarint(e.attribute, uint64(size))
	e.attribute = appendText(e.attribute, anyString, value)
	e.log = appendMessage(e.log, field, e.attribute)
}

func (e *logEncoder) number(key string, value int64) {
	e.attribute = appendText(e.attribute[:0], keyValueKey, key)
	e.attribute = protowire.AppendTag(e.attribute, keyValueValue, protowire.BytesType)
	size := protowire.SizeTag(anyInt) + protowire.SizeVarint(uint64(value))
	e.attribute = protowire.AppendVarint(e.attribute, uint64(size))
	e.attribute = protowire.AppendTag(e.attribute, anyInt, protowire.VarintType)
	e.attribute = protowire.AppendVarint(e.attribute, uint64(value))
	e.log = appendMessage(e.log, logAttributes, e.attribute)
}

func appendMessage(b []byte, field protowire.Number, message []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(b, field, protowire.BytesType), message)
}

func appendText(b []byte, field protowire.Number, text string) []byte {
	return protowire.AppendString(protowire.AppendTag(b, field, protowire.BytesType), text)
}
