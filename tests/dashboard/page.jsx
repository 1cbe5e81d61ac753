// Copyright (c) 2026, the sparkfleet.cluster authors
// GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
// SPDX-License-Identifier: GPL-3.0-or-later

// Draws a dashboard with Grafana's own components, and tells in #report what came of each panel.
// window.given: the dashboard, when it looks at, and Prometheus' answers by panel and refId.

import '@fontsource/inter/latin-400.css';
import '@fontsource/inter/latin-500.css';
import {
  applyFieldOverrides,
  createTheme,
  dateTime,
  FieldConfigOptionsRegistry,
  FieldType,
  getFieldDisplayName,
  getFieldDisplayValues,
  ThemeContext,
  toDataFrame,
  VizOrientation,
} from '@grafana/data';
import {
  BigValue,
  GlobalStyles,
  PanelChrome,
  TimeSeries,
  VizLegend,
  VizRepeater,
} from '@grafana/ui';
import { useLayoutEffect, useRef } from 'react';
import { createRoot } from 'react-dom/client';

const { dashboard, from, to, answers } = window.given;
const theme = createTheme({ colors: { mode: 'dark' } });
const range = { from: dateTime(from), to: dateTime(to), raw: { from: dateTime(from), to: dateTime(to) } };
const timeZone = 'utc';
// A column and a line of Grafana's grid, and the gap between panels.
const COLUMN = 60;
const LINE = 30;
const GAP = 8;

// Grafana's server side registers these with an editor for each; here they are only taken over.
function option(path, isCustom) {
  return {
    id: isCustom ? `custom.${path}` : path,
    path,
    name: path,
    isCustom,
    process: (value) => value,
    shouldApply: () => true,
    settings: {},
  };
}

const OF_ALL = ['unit', 'decimals', 'min', 'max', 'color', 'thresholds', 'mappings', 'noValue'];
const OF_LINES = ['drawStyle', 'lineInterpolation', 'lineStyle', 'lineWidth', 'fillOpacity', 'spanNulls', 'showPoints'];
const registry = new FieldConfigOptionsRegistry(() => [
  ...OF_ALL.map((path) => option(path, false)),
  ...OF_LINES.map((path) => option(path, true)),
]);

// What the data source does with a legend: names of labels in double braces.
function named(format, labels) {
  return format.replace(/\{\{\s*(\w+)\s*\}\}/g, (_all, label) => labels[label] ?? '');
}

function frames(panel) {
  const data = panel.targets.flatMap((target) =>
    answers[panel.id][target.refId].map(({ metric, values }) =>
      toDataFrame({
        refId: target.refId,
        fields: [
          { name: 'Time', type: FieldType.time, values: values.map(([when]) => when * 1000) },
          {
            name: 'Value',
            type: FieldType.number,
            labels: metric,
            config: { displayNameFromDS: named(target.legendFormat, metric) },
            values: values.map(([_when, value]) => Number(value)),
          },
        ],
      })
    )
  );
  return applyFieldOverrides({
    data,
    fieldConfig: panel.fieldConfig,
    fieldConfigRegistry: registry,
    replaceVariables: (text) => text,
    theme,
    timeZone,
  });
}

function Lines({ panel, width, height }) {
  return (
    <TimeSeries
      frames={frames(panel)}
      structureRev={1}
      timeRange={range}
      timeZone={timeZone}
      width={width}
      height={height}
      legend={panel.options.legend}
    />
  );
}

function Values({ panel, width, height }) {
  const { reduceOptions, ...look } = panel.options;
  return (
    <VizRepeater
      autoGrid
      source={panel}
      renderCounter={0}
      width={width}
      height={height}
      orientation={VizOrientation.Auto}
      getValues={() =>
        getFieldDisplayValues({
          data: frames(panel),
          fieldConfig: panel.fieldConfig,
          reduceOptions,
          replaceVariables: (text) => text,
          sparkline: look.graphMode !== 'none',
          theme,
          timeZone,
        })
      }
      renderValue={({ value, width, height, count }) => (
        <BigValue
          {...look}
          value={value.display}
          sparkline={value.sparkline}
          count={count}
          width={width}
          height={height}
          theme={theme}
        />
      )}
    />
  );
}

// Grafana publishes no component for this one. Names, texts and colours are of its own functions.
function States({ panel, width, height }) {
  const canvas = useRef(null);
  const rows = frames(panel).map((frame) => ({
    name: getFieldDisplayName(frame.fields[1], frame),
    times: frame.fields[0].values,
    shown: frame.fields[1].values.map((value) => frame.fields[1].display(value)),
  }));
  const legend = new Map(rows.flatMap(({ shown }) => shown.map(({ text, color }) => [text, color])));
  const body = height - 30;
  useLayoutEffect(() => {
    const pen = canvas.current.getContext('2d');
    pen.font = theme.typography.bodySmall.fontSize + ' Inter';
    pen.clearRect(0, 0, width, body);
    pen.textBaseline = 'middle';
    const left = Math.max(...rows.map(({ name }) => pen.measureText(name).width)) + 10;
    const x = (when) => left + ((when - from) / (to - from)) * (width - left);
    const tall = body / rows.length;
    rows.forEach(({ name, times, shown }, number) => {
      const middle = (number + 0.5) * tall;
      pen.globalAlpha = 1;
      pen.fillStyle = theme.colors.text.primary;
      pen.fillText(name, 0, middle);
      pen.globalAlpha = 0.7;
      shown.forEach(({ color }, point) => {
        if (point && color === shown[point - 1].color) {
          return;
        }
        const other = shown.findIndex((next, place) => place > point && next.color !== color);
        const end = x(other < 0 ? to : times[other]);
        pen.fillStyle = color;
        pen.fillRect(x(times[point]), middle - 0.45 * tall, end - x(times[point]), 0.9 * tall);
      });
    });
  });
  return (
    <div>
      <canvas ref={canvas} width={width} height={body} />
      <VizLegend
        displayMode="list"
        placement="bottom"
        items={[...legend].map(([label, color]) => ({ label, color, yAxis: 1 }))}
      />
    </div>
  );
}

const DRAWS = { timeseries: Lines, stat: Values, 'state-timeline': States };

function Panel({ panel }) {
  const { x, y, w, h } = panel.gridPos;
  const width = w * COLUMN - GAP;
  const height = h * (LINE + GAP) - GAP;
  const Draw = DRAWS[panel.type];
  return (
    <div
      data-panel={panel.id}
      style={{ position: 'absolute', left: x * COLUMN + GAP, top: y * (LINE + GAP) + GAP, width, height }}
    >
      {panel.type === 'row' ? (
        <h4 style={{ lineHeight: `${height}px` }}>{panel.title}</h4>
      ) : (
        <PanelChrome title={panel.title} description={panel.description} width={width} height={height}>
          {(width, height) =>
            frames(panel).length ? <Draw panel={panel} width={width} height={height} /> : 'No data'
          }
        </PanelChrome>
      )}
    </div>
  );
}

function Page() {
  const lines = Math.max(...dashboard.panels.map(({ gridPos }) => gridPos.y + gridPos.h));
  return (
    <ThemeContext.Provider value={theme}>
      <GlobalStyles hackNoBackdropBlur />
      <div style={{ position: 'relative', width: 24 * COLUMN + GAP, height: lines * (LINE + GAP) + GAP }}>
        {dashboard.panels.map((panel) => (
          <Panel key={panel.id} panel={panel} />
        ))}
      </div>
    </ThemeContext.Provider>
  );
}

// How many points of a canvas are painted.
function painted(canvas) {
  const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
  return data.reduce((sum, value, place) => sum + (place % 4 === 3 && value > 0), 0);
}

function report() {
  const told = [...document.querySelectorAll('[data-panel]')].map((place) => ({
    id: Number(place.dataset.panel),
    text: place.innerText,
    canvases: [...place.querySelectorAll('canvas')].map(painted),
  }));
  const place = document.createElement('script');
  place.id = 'report';
  place.type = 'application/json';
  place.textContent = JSON.stringify(told).replaceAll('<', '\\u003c');
  document.body.append(place);
}

// A canvas does not draw again when a font comes late.
Promise.all(['12px Inter', '500 12px Inter'].map((font) => document.fonts.load(font))).then(() => {
  createRoot(document.getElementById('root')).render(<Page />);
  setTimeout(report, 3000);
});
