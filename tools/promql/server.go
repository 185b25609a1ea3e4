package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/config"
	"github.com/prometheus/prometheus/discovery"
	"github.com/prometheus/prometheus/discovery/targetgroup"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/scrape"
	"github.com/prometheus/prometheus/tsdb"
)

// server is Prometheus without its HTTP server and discovery: it scrapes the static
// targets of its configuration, stores what they answer, and evaluates queries.
type server struct {
	dir     string
	db      *tsdb.DB
	scrapes *scrape.Manager
	engine  *promql.Engine
}

// sample is a value of a query's result, with its labels.
type sample struct {
	Metric map[string]string `json:"metric"`
	Value  string            `json:"value"`
	// Number is whether the value is a number: a rate of nothing is not.
	Number bool `json:"number"`
}

// start begins to scrape.
func start(file string, log io.Writer) (s *server, err error) {
	logger := slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelWarn}))
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	cfg, err := config.Load(string(text), logger)
	if err != nil {
		return nil, fmt.Errorf("configuration %s: %w", file, err)
	}
	targets, err := targetsOf(cfg)
	if err != nil {
		return nil, fmt.Errorf("configuration %s: %w", file, err)
	}
	s = &server{engine: promql.NewEngine(promql.EngineOpts{
		Logger: logger, MaxSamples: 1e6, Timeout: time.Minute, EnableAtModifier: true, EnableNegativeOffset: true,
		Parser: parser.NewParser(parser.Options{}),
	})}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.stop())
		}
	}()
	if s.dir, err = os.MkdirTemp("", "promql-"); err != nil {
		return nil, fmt.Errorf("make room for samples: %w", err)
	}
	if s.db, err = tsdb.Open(s.dir, logger, nil, tsdb.DefaultOptions(), nil); err != nil {
		return nil, fmt.Errorf("open storage: %w", err)
	}
	options := &scrape.Options{DiscoveryReloadOnStartup: true, DiscoveryReloadInterval: model.Duration(time.Second)}
	if s.scrapes, err = scrape.NewManager(options, logger, nil, nil, s.db, prometheus.NewRegistry()); err != nil {
		return nil, fmt.Errorf("make scrapes: %w", err)
	}
	if err := s.scrapes.ApplyConfig(cfg); err != nil {
		return nil, fmt.Errorf("configuration %s: %w", file, err)
	}
	updates := make(chan map[string][]*targetgroup.Group, 1)
	updates <- targets
	go func() { _ = s.scrapes.Run(updates) }() // Its error is always nil.
	return s, nil
}

// targetsOf are the targets of each job.
func targetsOf(cfg *config.Config) (map[string][]*targetgroup.Group, error) {
	jobs, err := cfg.GetScrapeConfigs()
	if err != nil {
		return nil, fmt.Errorf("read jobs: %w", err)
	}
	all := map[string][]*targetgroup.Group{}
	for _, job := range jobs {
		for _, c := range job.ServiceDiscoveryConfigs {
			static, is := c.(discovery.StaticConfig)
			if !is {
				return nil, fmt.Errorf("job %s: discovery by %s, want static_configs", job.JobName, c.Name())
			}
			all[job.JobName] = append(all[job.JobName], static...)
		}
	}
	return all, nil
}

// query evaluates an expression for now.
func (s *server) query(ctx context.Context, expression string) ([]sample, error) {
	q, err := s.engine.NewInstantQuery(ctx, s.db, nil, expression, time.Now())
	if err != nil {
		return nil, fmt.Errorf("parse %s: %w", expression, err)
	}
	defer q.Close()
	result := q.Exec(ctx)
	if result.Err != nil {
		return nil, fmt.Errorf("evaluate %s: %w", expression, result.Err)
	}
	if scalar, is := result.Value.(promql.Scalar); is {
		return []sample{{map[string]string{}, fmt.Sprint(scalar.V), !math.IsNaN(scalar.V)}}, nil
	}
	vector, err := result.Vector()
	if err != nil {
		return nil, fmt.Errorf("evaluate %s: %w", expression, err)
	}
	samples := []sample{}
	for _, v := range vector {
		samples = append(samples, sample{v.Metric.Map(), fmt.Sprint(v.F), !math.IsNaN(v.F)})
	}
	return samples, nil
}

func (s *server) stop() error {
	if s.scrapes != nil {
		s.scrapes.Stop()
	}
	var err error
	if s.db != nil {
		err = s.db.Close()
	}
	return errors.Join(err, os.RemoveAll(s.dir))
}
