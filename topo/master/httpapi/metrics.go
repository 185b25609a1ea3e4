package httpapi

import (
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics count requests.
type metrics struct {
	requests *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
	watchers prometheus.Gauge
	dropped  prometheus.Counter
}

func newMetrics(r prometheus.Registerer) *metrics {
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "heddle_topo_http_requests_total", Help: "Requests by route and status.",
		}, []string{"route", "code"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "heddle_topo_http_request_seconds", Help: "Time to answer, by route.",
			Buckets: []float64{50e-6, 200e-6, 1e-3, 5e-3, 20e-3, 100e-3, 1, 10},
		}, []string{"route"}),
		watchers: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "heddle_topo_watchers", Help: "Readers of /v1/watch.",
		}),
		dropped: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "heddle_topo_watchers_dropped_total", Help: "Readers of /v1/watch that could not follow.",
		}),
	}
	r.MustRegister(m.requests, m.seconds, m.watchers, m.dropped)
	return m
}

// count measures one route.
func (m *metrics) count(route string, next http.HandlerFunc) http.HandlerFunc {
	seconds := m.seconds.WithLabelValues(route)
	return func(w http.ResponseWriter, r *http.Request) {
		begin := time.Now()
		spy := &status{ResponseWriter: w, code: http.StatusOK}
		next(spy, r)
		seconds.Observe(time.Since(begin).Seconds())
		m.requests.WithLabelValues(route, strconv.Itoa(spy.code)).Inc()
	}
}

// status remembers the code of an answer.
type status struct {
	http.ResponseWriter
	code int
}

func (s *status) WriteHeader(code int) {
	s.code = code
	s.ResponseWriter.WriteHeader(code)
}
