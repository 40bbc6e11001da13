// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"strings"
	"time"

	common "go.opentelemetry.io/proto/otlp/common/v1"
	logs "go.opentelemetry.io/proto/otlp/logs/v1"
	resource "go.opentelemetry.io/proto/otlp/resource/v1"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

const (
	otlpTimeout  = 10 * time.Second
	otlpMaxReply = 1 << 16
)

// otlp sends records as OpenTelemetry logs, by OTLP/HTTP with protobuf. It reads the files of
// certificates when it connects, and again after each failure, and headers each time.
type otlp struct {
	config   Config
	endpoint string
	client   *http.Client // nil: to be made
	resource *resource.Resource
}

func newOTLP(config Config, node string) (*otlp, error) {
	endpoint, err := parseEndpoint(config.LedgerOTLPEndpoint)
	if err != nil {
		return nil, err
	}
	return &otlp{
		config:   config,
		endpoint: endpoint.String(),
		resource: &resource.Resource{Attributes: []*common.KeyValue{
			text("service.name", "sluice"), text("k8s.node.name", node),
		}},
	}, nil
}

// write implements output. What the server refuses for good is lost.
func (o *otlp) write(ctx context.Context, records []Record) (done, lost int, err error) {
	scope := &logs.ScopeLogs{Scope: &common.InstrumentationScope{Name: "sluice.ledger"}}
	for i := range records {
		scope.LogRecords = append(scope.LogRecords, logRecord(&records[i]))
	}
	// It has the fields of an ExportLogsServiceRequest, whose package needs gRPC.
	body, err := proto.Marshal(&logs.LogsData{ResourceLogs: []*logs.ResourceLogs{
		{Resource: o.resource, ScopeLogs: []*logs.ScopeLogs{scope}},
	}})
	if err != nil {
		return 0, 0, fmt.Errorf("encode logs of the ledger: %w", err)
	}
	response, err := o.post(ctx, body)
	if err != nil {
		return 0, 0, fmt.Errorf("send logs of the ledger: %w", err)
	}
	defer response.Body.Close()
	reply, err := io.ReadAll(io.LimitReader(response.Body, otlpMaxReply))
	switch code := response.StatusCode; {
	case err != nil && code/100 == 2:
		return len(records), 0, nil // it has them
	case code/100 == 2:
		return len(records), min(rejected(reply), len(records)), nil
	// OTLP says that what is refused for want of a right is not to be sent again. But it is the
	// files that are wrong, and not the records.
	case code == http.StatusUnauthorized, code == http.StatusForbidden,
		code == http.StatusTooManyRequests, code == http.StatusBadGateway,
		code == http.StatusServiceUnavailable, code == http.StatusGatewayTimeout:
		return 0, 0, fmt.Errorf("send logs of the ledger to %s: %s", o.endpoint, response.Status)
	default: // as OTLP says, it is not to be sent again
		return len(records), len(records),
			fmt.Errorf("send logs of the ledger to %s: refused: %s", o.endpoint, response.Status)
	}
}

// post sends a request, and gives up the connection if that fails.
func (o *otlp) post(ctx context.Context, body []byte) (*http.Response, error) {
	headers, err := o.config.headers()
	if err != nil {
		return nil, err
	}
	if o.client == nil {
		if o.client, err = o.config.newClient(); err != nil {
			return nil, err
		}
	}
	request, err := http.NewRequestWithContext(
		ctx, http.MethodPost, o.endpoint, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	request.Header = headers
	request.Header.Set("Content-Type", "application/x-protobuf")
	response, err := o.client.Do(request)
	if err != nil {
		_ = o.close()
		return nil, o.config.explain(err)
	}
	return response, nil
}

func (o *otlp) close() error {
	if o.client != nil {
		o.client.CloseIdleConnections()
		o.client = nil
	}
	return nil
}

// rejected returns how many records an ExportLogsServiceResponse says were refused: the first
// field of its first field.
func rejected(reply []byte) int {
	partial := field(reply, protowire.BytesType)
	message, n := protowire.ConsumeBytes(partial)
	if n < 0 {
		return 0
	}
	count, n := protowire.ConsumeVarint(field(message, protowire.VarintType))
	if n < 0 || int64(count) < 0 {
		return 0
	}
	return int(min(count, 1<<31))
}

// field returns a message from the value of its first field on, nil if it has none of the type.
func field(message []byte, wanted protowire.Type) []byte {
	for len(message) > 0 {
		number, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return nil
		}
		if message = message[n:]; number == 1 && kind == wanted {
			return message
		}
		if n = protowire.ConsumeFieldValue(number, kind, message); n < 0 {
			return nil
		}
		message = message[n:]
	}
	return nil
}

// logRecord returns a record as a log, with the names of OpenTelemetry's conventions where
// there are some.
func logRecord(r *Record) *logs.LogRecord {
	attributes := []*common.KeyValue{}
	add := func(key, value string) {
		if value != "" {
			attributes = append(attributes, text(key, value))
		}
	}
	addPeer := func(key string, peer netip.AddrPort) {
		if peer.IsValid() {
			attributes = append(attributes, text(key+".address", peer.Addr().String()),
				number(key+".port", int64(peer.Port())))
		}
	}
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
		attributes = append(attributes, number("sluice.ledger.id", int64(r.ID)))
	}
	if r.Count != 0 {
		attributes = append(attributes, number("sluice.ledger.count", int64(r.Count)))
	}
	if r.Event == End {
		add("sluice.ledger.began", r.Began.Format(time.RFC3339Nano))
		if !r.LastUsed.IsZero() {
			add("sluice.ledger.last_used", r.LastUsed.Format(time.RFC3339))
		}
	}
	severity := logs.SeverityNumber_SEVERITY_NUMBER_INFO
	if r.Event == Missing {
		severity = logs.SeverityNumber_SEVERITY_NUMBER_WARN
	}
	return &logs.LogRecord{
		TimeUnixNano: uint64(r.Time.UnixNano()), SeverityNumber: severity,
		EventName: "sluice.ledger." + string(r.Event), Attributes: attributes,
		Body: &common.AnyValue{Value: &common.AnyValue_StringValue{StringValue: string(r.Event)}},
	}
}

func text(key, value string) *common.KeyValue {
	return &common.KeyValue{Key: key, Value: &common.AnyValue{
		Value: &common.AnyValue_StringValue{StringValue: value},
	}}
}

func number(key string, value int64) *common.KeyValue {
	return &common.KeyValue{Key: key, Value: &common.AnyValue{
		Value: &common.AnyValue_IntValue{IntValue: value},
	}}
}
