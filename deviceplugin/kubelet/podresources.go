package kubelet

import (
	"context"
	"fmt"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/heddle-dev/heddle/internal/notify"
)

// maxList is the largest answer taken, in bytes, as in the kubelet's own
// client.
const maxList = 16 << 20

// Dial makes a client of the PodResources socket, such as
// /var/lib/kubelet/pod-resources/kubelet.sock. The socket need not be there
// yet, and may go and come: calls wait for it within their deadline.
func Dial(socket string) (*grpc.ClientConn, error) {
	return grpc.NewClient("unix:"+socket,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true), grpc.MaxCallRecvMsgSize(maxList)),
		// gRPC's own backoff grows to two minutes, and GPUs are registered as soon as
		// the kubelet answers. An attempt on a socket that is not there is one system
		// call. ResetConnectBackoff does not help: it reads the connections of a client
		// that just makes one (grpc 1.85, a data race).
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{BaseDelay: 5 * time.Millisecond, Multiplier: 1.2, MaxDelay: 10 * time.Millisecond},
			// A busy kubelet is slow to complete the HTTP/2 handshake.
			MinConnectTimeout: 5 * time.Second,
		}),
	)
}

const (
	// listTimeout bounds one List; the kubelet's limit on PreStartContainer is
	// 30 s, and an error with the reason must come before that.
	listTimeout = 10 * time.Second
	// The kubelet admits 100 calls a second after a burst of 10, of all its
	// clients together, and rejects the rest with ResourceExhausted.
	firstRetry = 20 * time.Millisecond
	lastRetry  = 500 * time.Millisecond
	// The lister therefore limits its own rate: callers that wait meanwhile
	// share the answer.
	listsPerSecond = 95
	listsAtOnce    = 8
)

// lister asks PodResources once for all callers that wait: a List serves those
// that asked before it began, and those that ask while it runs get the next.
// It never serves what began before the question, so that a container that was
// admitted before its PreStartContainer is in the answer.
type lister struct {
	client podresources.PodResourcesListerClient
	pace   *rate.Limiter
	// calling has room for the one List that may be under way.
	calling chan struct{}

	mu sync.Mutex // guards what follows
	// next is the List that has not begun; nil if no caller waits for one.
	next *listing
}

// listing is one List, which its first caller makes.
type listing struct {
	done chan struct{} // closed when what follows is set
	pods []*podresources.PodResources
	err  error
	// abandoned is true if the first caller did not wait for the answer.
	abandoned bool
}

func newLister(client podresources.PodResourcesListerClient) *lister {
	return &lister{
		client: client, pace: rate.NewLimiter(listsPerSecond, listsAtOnce), calling: make(chan struct{}, 1),
	}
}

// list returns the pods, or an error once ctx ends or the kubelet rejects the
// call.
func (l *lister) list(ctx context.Context) ([]*podresources.PodResources, error) {
	for {
		l.mu.Lock()
		call, first := l.next, l.next == nil
		if first {
			call = &listing{done: make(chan struct{})}
			l.next = call
		}
		l.mu.Unlock()
		if first {
			l.run(ctx, call)
		}
		select {
		case <-call.done:
			// One caller's end must not take the answer from the others.
			if !call.abandoned || ctx.Err() != nil {
				return call.pods, call.err
			}
		case <-ctx.Done():
			return nil, notAnswered(ctx)
		}
	}
}

// run makes the call for those that wait when it begins.
func (l *lister) run(ctx context.Context, call *listing) {
	defer close(call.done)
	select {
	case l.calling <- struct{}{}:
		defer func() { <-l.calling }()
	case <-ctx.Done():
	}
	_ = l.pace.Wait(ctx) // It fails if ctx ends, and then so does the call.
	l.mu.Lock()
	l.next = nil
	l.mu.Unlock()
	call.pods, call.err = l.ask(ctx)
	call.abandoned = ctx.Err() != nil
}

// ask lists, and tries again while that may help.
func (l *lister) ask(ctx context.Context) ([]*podresources.PodResources, error) {
	within, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	for pause := firstRetry; ; pause = min(2*pause, lastRetry) {
		response, err := l.client.List(within, &podresources.ListPodResourcesRequest{})
		switch {
		case err == nil:
			return response.GetPodResources(), nil
		case transient(err) && notify.Sleep(within, pause):
		case ctx.Err() != nil:
			return nil, notAnswered(ctx)
		default:
			return nil, fmt.Errorf("list kubelet PodResources: %w", err)
		}
	}
}

func notAnswered(ctx context.Context) error {
	return fmt.Errorf("kubelet PodResources has not answered: %w", context.Cause(ctx))
}

// transient reports whether to ask again: the kubelet has been asked too often,
// by any of its clients, or was stopped while it answered.
func transient(err error) bool {
	code := status.Code(err)
	return code == codes.ResourceExhausted || code == codes.Unavailable
}
