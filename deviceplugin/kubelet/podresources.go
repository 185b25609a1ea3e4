package kubelet

import (
	"context"
	"fmt"
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
	// The lister therefore limits its own rate.
	listsPerSecond = 95
	listsAtOnce    = 8
)

// lister asks PodResources for one caller at a time. A caller takes the answer to a List that began
// after it asked, so that those who wait share one, and a container that was admitted before its
// PreStartContainer is in the answer.
type lister struct {
	client podresources.PodResourcesListerClient
	pace   *rate.Limiter
	// turn has room for the one caller that uses what follows.
	turn  chan struct{}
	began time.Time
	pods  []*podresources.PodResources
}

func newLister(client podresources.PodResourcesListerClient) *lister {
	return &lister{client: client, pace: rate.NewLimiter(listsPerSecond, listsAtOnce), turn: make(chan struct{}, 1)}
}

// list returns the pods, or an error once ctx ends or the kubelet rejects the
// call.
func (l *lister) list(ctx context.Context) ([]*podresources.PodResources, error) {
	asked := time.Now()
	select {
	case l.turn <- struct{}{}:
		defer func() { <-l.turn }()
	case <-ctx.Done():
		return nil, notAnswered(ctx)
	}
	if l.began.After(asked) {
		return l.pods, nil
	}
	_ = l.pace.Wait(ctx) // It fails if ctx ends, and then so does the call.
	began := time.Now()
	pods, err := l.ask(ctx)
	if err != nil {
		return nil, err
	}
	l.began, l.pods = began, pods
	return pods, nil
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
